# SPDX-License-Identifier: Apache-2.0
"""Commands `nvct mig ...`, program `nvidia-mig-parted`."""
