# SPDX-License-Identifier: Apache-2.0
"""The version as a plain string; importing it costs nothing (no importlib.metadata)."""

__version__ = "0.1.0"
