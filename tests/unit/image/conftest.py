# SPDX-License-Identifier: Apache-2.0
"""The modules of packaging/image, which are scripts, for tests."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDERS = [str(Path(__file__).parents[3] / "packaging" / name) for name in ("image", "bundle")]
"""build.py of the first, and what it takes of the second."""


def load(name: str) -> ModuleType:
    """Import a module of packaging/image."""
    before = sys.path[:]
    sys.path[:0] = FOLDERS
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = before
