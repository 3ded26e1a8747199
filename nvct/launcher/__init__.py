# SPDX-License-Identifier: Apache-2.0
"""How the programs of the hot side are started, and the installer of those starters."""
