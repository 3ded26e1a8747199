# SPDX-License-Identifier: Apache-2.0
"""Parses TOML by the standard library, or by tomli: the same parser, for Python 3.10."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def loads(text: str) -> dict[str, Any]:
    """Return a TOML text's content; ValueError if it is not TOML, RecursionError if too deep."""
    parser = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    document: dict[str, Any] = parser.loads(text)
    return document
