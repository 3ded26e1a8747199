# SPDX-License-Identifier: Apache-2.0
"""The interpreter of the cold side, which can run `-I -m nvct.MODULE`."""

from __future__ import annotations

import os
import sys

BESIDE = "cold"  # Its name in packages (packaging/files/cold), beside the package nvct


def interpreter() -> str:
    """Return its path: the one beside an installed package, else the running interpreter."""
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    path = os.path.join(packages, BESIDE)
    return path if os.path.isfile(path) and os.access(path, os.X_OK) else sys.executable
