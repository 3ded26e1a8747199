# SPDX-License-Identifier: Apache-2.0
"""The launchers, which start the programs of the hot side, and their installer."""
