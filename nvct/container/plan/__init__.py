# SPDX-License-Identifier: Apache-2.0
"""Compiled specs: their format, their fingerprints, and their edits of config.json."""
