# SPDX-License-Identifier: Apache-2.0
"""Reads and edits config.toml; edits any TOML file in place."""
