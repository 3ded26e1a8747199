# SPDX-License-Identifier: Apache-2.0
"""Its task and program `nvidia-mig-manager`: the MIG devices that the Node's label names."""
