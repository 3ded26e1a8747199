# SPDX-License-Identifier: Apache-2.0
"""Config.toml."""
