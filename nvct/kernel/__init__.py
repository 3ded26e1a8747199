# SPDX-License-Identifier: Apache-2.0
"""System calls of the cold side by C's declarations (cffi); folders shared with others."""
