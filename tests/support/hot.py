# SPDX-License-Identifier: Apache-2.0
"""nvct-hot, the hot side in one static file: built on demand."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[2]
HOT_ENV = "NVCT_TESTS_HOT"
"""Variable that names an existing nvct-hot."""
TIMEOUT_S = 900.0


def executable(folder: Path) -> Path:
    """Return the path of this checkout's nvct-hot; skip if it cannot be built."""
    named = os.environ.get(HOT_ENV)
    if named:
        return Path(named).resolve()
    for tool in ("musl-gcc", "dpkg-source", "apt-get"):
        if shutil.which(tool) is None:
            pytest.skip(f"nvct-hot cannot be built: {tool} is missing")
    path = folder / "nvct-hot"
    done = build(path)
    assert done.returncode == 0, done.stderr
    return path


def build(
    path: Path, source: Path = REPOSITORY, *, restore_signals: bool = True
) -> subprocess.CompletedProcess[str]:
    """Build nvct-hot; its interpreter is built once for a machine and kept.

    With `restore_signals` False, SIGPIPE and SIGXFSZ are ignored, as Python ignores them.
    """
    return captured(
        ["sh", str(source / "packaging/static/build.sh"), str(path)], timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
        restore_signals=restore_signals,
    )  # fmt: skip
