# SPDX-License-Identifier: Apache-2.0
"""What several files of tests need and takes long to make: made once in a run of pytest."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the run's folder of this name, which the first worker that asks for it fills.

    No test writes to it. If `make` raises or skips, the next one that asks tries again.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # a worker's own folder is in the run's
    place = base / name
    with (base / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            aside = factory.mktemp(name)
            make(aside)
            aside.rename(place)
    return place
