# SPDX-License-Identifier: Apache-2.0
"""The farm: read-only views of one driver's user space."""
