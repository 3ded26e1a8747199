# SPDX-License-Identifier: Apache-2.0
"""Cold: config.toml, inventory and specifications -> what the hot side reads."""
