# SPDX-License-Identifier: Apache-2.0
"""Inventory -> CDI specification, written to a file."""
