# SPDX-License-Identifier: Apache-2.0
"""Checks whether specifications still describe the host, and which engines read them."""
