# SPDX-License-Identifier: Apache-2.0
"""The bundle of this source, packed and unpacked; built again only if its sources change."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvct_sim.native.build import find_compiler
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "nvct-tests", "bundle")
KEPT = 2
BUILD_TIMEOUT_S = 350


def tree() -> Path:
    """Return the folder of the unpacked bundle; NVCT_TESTS_BUNDLE names another one."""
    if "NVCT_TESTS_BUNDLE" in os.environ:
        return Path(os.environ["NVCT_TESTS_BUNDLE"])
    return next(path for path in _made().iterdir() if path.is_dir())


def archive() -> Path:
    """Return the bundle as it is built, a .tar.gz."""
    return next(_made().glob("*.tar.gz"))


def _made() -> Path:
    """Return the folder of archive and tree; skip where the bundle can't be built."""
    CACHE.mkdir(parents=True, exist_ok=True)
    place = CACHE / _digest()
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _build(place)
        os.utime(place)
        old = sorted((p for p in CACHE.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for path in old[:-KEPT]:
            shutil.rmtree(path)
    return place


def _build(place: Path) -> None:
    find_compiler()
    made = place.with_name(f"{place.name}.made")
    shutil.rmtree(made, ignore_errors=True)
    done = captured(
        [sys.executable, str(REPOSITORY / "packaging/bundle/build.py"), "--out", str(made)],
        timeout=BUILD_TIMEOUT_S,
    )
    for reason in ("is of no Debian package", "is made with Python"):
        if reason in done.stderr:
            pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    packed = next(made.glob("*.tar.gz"))
    subprocess.run(["tar", "--extract", "--file", packed, "--directory", made], check=True)
    made.rename(place)


def _digest() -> str:
    """Return a digest of the sources of the bundle."""
    whole = hashlib.sha256(f"{sys.version} packed".encode())
    for folder in ("nvct", "packaging/bundle"):
        for path in sorted(Path(REPOSITORY, folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                whole.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return whole.hexdigest()[:16]
