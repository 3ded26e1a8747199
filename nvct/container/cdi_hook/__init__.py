# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-cdi-hook`."""
