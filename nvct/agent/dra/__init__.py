# SPDX-License-Identifier: Apache-2.0
"""The agent's task `dra` (`gpu-kubelet-plugin`): devices -> ResourceSlices; claims -> CDI."""
