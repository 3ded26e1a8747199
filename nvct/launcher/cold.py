# SPDX-License-Identifier: Apache-2.0
"""The interpreter of the cold side: it finds nvct and its dependencies by `-I -m nvct.MODULE`."""

from __future__ import annotations

import os
import sys

BESIDE = "cold"
"""Packages put it beside the package nvct (packaging/files/cold), where Python does not look."""


def interpreter() -> str:
    """Return its path: that of this installation's package, else the running interpreter."""
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    path = os.path.join(packages, BESIDE)
    return path if os.path.isfile(path) and os.access(path, os.X_OK) else sys.executable
