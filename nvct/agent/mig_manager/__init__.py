# SPDX-License-Identifier: Apache-2.0
"""The agent's task `mig-manager` (`nvidia-mig-manager`): MIG devices as the Node's label says."""
