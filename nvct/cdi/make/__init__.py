# SPDX-License-Identifier: Apache-2.0
"""Makes a CDI specification from an inventory, and writes it to a file."""
