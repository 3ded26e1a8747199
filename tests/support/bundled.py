# SPDX-License-Identifier: Apache-2.0
"""The unpacked bundle of this source; built again only if its sources change."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
    return next(place.iterdir())


def _build(place: Path) -> None:
    find_compiler()
    made = place.with_name(f"{place.name}.made")
    shutil.rmtree(made, ignore_errors=True)
    done = captured(
        [sys.executable, str(REPOSITORY / "packaging/bundle/build.py"), "--out", str(made)],
        timeout=BUILD_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    archive = next(made.glob("*.tar.gz"))
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", made], check=True)
    archive.unlink()
    made.rename(place)


def _digest() -> str:
    """Return a digest of the sources of the bundle."""
    whole = hashlib.sha256(sys.version.encode())
    for folder in ("nvct", "packaging/bundle"):
        for path in sorted(Path(REPOSITORY, folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                whole.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return whole.hexdigest()[:16]
