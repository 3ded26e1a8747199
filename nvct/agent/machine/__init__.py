# SPDX-License-Identifier: Apache-2.0
"""The machine as tasks see it: roots of the driver, inventory, changed folders."""
