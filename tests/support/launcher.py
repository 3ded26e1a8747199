# SPDX-License-Identifier: Apache-2.0
"""The launchers, built with a fake interpreter, beside fake runtimes: small scripts that print."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from nvct.launcher.install import Built, compile_launcher, fill_script

# Prints the arguments of a program byte for byte, each with a final NUL.
PRINT_ARGS = """printf '%s\\0' "$0" "$@"\n"""


class Answer(NamedTuple):
    """The result of a fake program: exit status, words that it printed, output."""

    status: int
    words: list[bytes]
    stdout: bytes
    stderr: bytes


def script(path: Path, body: str, mode: int = 0o755) -> Path:
    """Write a program for /bin/sh."""
    path.write_text("#!/bin/sh\n" + body, encoding="utf-8")
    path.chmod(mode)
    return path


def ask(
    command: Sequence[str | bytes | Path],
    env: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: Path,
    data: bytes = b"",
) -> Answer:
    """Run a launcher and return the output of the program that it starts."""
    done = subprocess.run(
        list(command), env=env, cwd=cwd, input=data, capture_output=True, check=False, timeout=60
    )
    words = done.stdout.split(b"\0")
    return Answer(done.returncode, words[:-1], done.stdout, done.stderr)


def compiled(folder: Path, built: Built, *flags: str, name: str = "launcher") -> Path:
    """Compile the launcher, or skip."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = folder / name
    path.write_bytes(compile_launcher(built, compiler, "-Werror", *flags))
    path.chmod(0o755)
    return path


def shown(folder: Path) -> Path:
    """Return a launcher that only prints its parsed command line."""
    built = Built(python="/no/python", packages="/no/packages", cold="/no/cold")
    return compiled(folder, built, "-DNVCT_SHOW_ARGV", name="shown")


def scripted(path: Path, built: Built) -> Path:
    """Write the launcher for /bin/sh."""
    path.write_bytes(fill_script(built))
    path.chmod(0o755)
    return path
