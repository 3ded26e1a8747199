# SPDX-License-Identifier: Apache-2.0
"""Its task and program `nvidia-device-plugin`."""
