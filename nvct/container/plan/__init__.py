# SPDX-License-Identifier: Apache-2.0
"""Compiled specs: their format, whether they still hold, into config.json."""
