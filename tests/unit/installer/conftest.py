# SPDX-License-Identifier: Apache-2.0
"""A bundle of programs that print their command lines, and requests to install it."""

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nvct.installer.programs import COMMAND_LINES, HOOK, RUNTIMES, WRAPPER
from nvct.installer.request import Request
from nvct.launcher.install import FLAGS
from nvct.paths import CONFIG_ENV, HOOK_PROGRAM
from tests.support.processes import captured

REPOSITORY = Path(__file__).parents[3]
Ask = Callable[..., Request]
SAYS = f'#!/bin/sh\necho "$0 $*"\necho "$PATH"\necho "${CONFIG_ENV}"\n'


@functools.cache
def wrapper() -> bytes:
    """Return the compiled wrapper; skips without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "wrapper")
        command = [compiler, *FLAGS, "-Werror", "-static-pie", f"-I{REPOSITORY}/nvct/launcher"]
        subprocess.run(
            [*command, "-o", path, REPOSITORY / "packaging/bundle/wrapper.c"], check=True
        )
        return path.read_bytes()


def bundle(folder: Path, says: str = SAYS) -> Path:
    """Make a tree as `make bundle` makes it, as far as the installer looks at it."""
    path = folder / WRAPPER
    path.parent.mkdir(parents=True)
    path.write_bytes(wrapper())
    (folder / "bin").mkdir(parents=True)
    (folder / "lib/nvct").mkdir(parents=True)
    (folder / "lib/nvct/model.py").write_text("X = 1\n", encoding="utf-8")
    for name in (*RUNTIMES, HOOK, HOOK_PROGRAM, *COMMAND_LINES):
        (folder / "bin" / name).write_text(says, encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    (folder / "lib/nvct/again").symlink_to("model.py")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return bundle(tmp_path / "bundle")


@pytest.fixture
def ask(tmp_path: Path, source: Path) -> Ask:
    """Return a request to install the bundle below tmp_path; what is given replaces a value."""

    def made(**passed: object) -> Request:
        values = {
            "toolkit": f"{tmp_path}/nvidia/toolkit",
            "source": str(source),
            "pid_file": f"{tmp_path}/run/toolkit.pid",
            "state_dir": f"{tmp_path}/state",
            "driver_root": "/run/nvidia/driver",
            "driver_root_mount": f"{tmp_path}/driver",
        }
        return Request(**(values | passed))  # type: ignore[arg-type]

    return made


def call(
    program: str, *args: str, path: str = "/usr/bin:/bin"
) -> subprocess.CompletedProcess[str]:
    """Run an installed program as an engine does."""
    return captured([program, *args], env={"PATH": path}, timeout=30)


def listing(folder: str) -> set[str]:
    return {
        os.path.relpath(os.path.join(path, name), folder)
        for path, _, names in os.walk(folder)
        for name in names
    }
