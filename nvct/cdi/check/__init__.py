# SPDX-License-Identifier: Apache-2.0
"""Whether specifications still describe the host, and which engines read them."""
