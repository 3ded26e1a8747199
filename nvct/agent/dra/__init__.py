# SPDX-License-Identifier: Apache-2.0
"""Its task `dra`, program `gpu-kubelet-plugin`: devices -> ResourceSlices; claims -> CDI."""
