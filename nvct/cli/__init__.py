# SPDX-License-Identifier: Apache-2.0
"""Programs `nvct` and `nvidia-ctk`: options, one call, output."""
