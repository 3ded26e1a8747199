# SPDX-License-Identifier: Apache-2.0
"""GPU containers that start fast, never drift and explain themselves."""
