# SPDX-License-Identifier: Apache-2.0
"""A small Debian in a folder, to install packages into: made once, used as a lower layer."""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import shutil
from pathlib import Path

from tests.engines import suite as engines
from tests.support import mmdebstrap

INCLUDE = (
    "python3-click", "python3-yaml", "python3-jsonschema", "python3-rich", "python3-tomlkit",
    "runc",
)  # fmt: skip
TIMEOUT_S = 360.0
CACHE_ENV = "NVCT_TEST_ROOTS"
"""Names the folder of the roots, instead of one in the user's cache."""


def root(release: str, *more: str, bare: bool = False) -> Path:
    """Return a folder with an installed minimal Debian and what nvct depends on.

    Args:
        release: its name.
        more: further packages.
        bare: only these packages and what they need, unpacked but not set up.

    Raises:
        ContainerNotPossibleError: it is not there and cannot be made here.
    """
    named = os.environ.get(CACHE_ENV)
    cache = Path(named) if named else Path.home() / ".cache/nvct-tests/roots"
    cache.mkdir(parents=True, exist_ok=True)
    month = dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m")
    found = cache / "-".join((release, *(["bare"] if bare else []), month, *more))
    with (cache / f".{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_dir():
            aside = cache / f".{release}"
            shutil.rmtree(aside, ignore_errors=True)
            _make(release, aside, more if bare else (*INCLUDE, *more), bare=bare)
            aside.rename(found)
    return found


def _make(release: str, folder: Path, packages: tuple[str, ...], *, bare: bool) -> None:
    options = [
        f"--variant={'extract' if bare else 'minbase'}", f"--include={','.join(packages)}"
    ]  # fmt: skip
    mmdebstrap.make(release, folder, options, mirror=engines.mirror(), timeout_s=TIMEOUT_S)
