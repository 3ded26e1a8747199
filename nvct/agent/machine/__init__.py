# SPDX-License-Identifier: Apache-2.0
"""The machine as tasks know it: driver's root, inventory, changed folders."""
