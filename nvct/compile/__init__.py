# SPDX-License-Identifier: Apache-2.0
"""Cold: compiles config.toml, the inventory and specifications into files for the hot side."""
