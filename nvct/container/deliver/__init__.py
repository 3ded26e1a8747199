# SPDX-License-Identifier: Apache-2.0
"""The layouts: how the shim gives a container the driver's files."""
