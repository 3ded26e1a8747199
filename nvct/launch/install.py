# SPDX-License-Identifier: Apache-2.0
"""Install the launchers: the programs that start the hot side.

Cold. One static C program under several names where a compiler is at hand, else one shell script.
The interpreter and the folder of nvct are built in, so that no environment variable and no
working directory has a say in what a process running as root loads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nvct.errors import HostError, UsageError
from nvct.linux.files import write_atomic

PROGRAMS = (
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-cdi-hook",
)
SOURCE = Path(__file__).with_name("launcher.c")
SCRIPT = Path(__file__).with_name("launcher.sh")
FORMS = ("auto", "c", "sh")


@dataclass(frozen=True, kw_only=True)
class Built:
    """What is built into a launcher.

    Attributes:
        python: interpreter of the hot side; needs nothing but the standard library.
        packages: the folder that holds the package nvct.
        cold: interpreter of the cold side, which has nvct's dependencies.
    """

    python: str
    packages: str
    cold: str

    def check(self) -> None:
        """Refuse paths that would need quoting, and relative ones.

        Raises:
            UsageError: a path cannot be built in.
        """
        for path in (self.python, self.packages, self.cold):
            if not path.startswith("/") or any(c in path for c in "\"'\\\n$`|&"):
                raise UsageError(
                    f"{path!r} cannot be built into a launcher",
                    hint="use absolute paths without quotes, $ or backslashes",
                )


def default_built() -> Built:
    """Return this installation's paths: the base interpreter of a venv starts faster."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Built(
        python=os.path.realpath(base),
        packages=str(Path(__file__).resolve().parents[2]),
        cold=sys.executable,
    )


def install(
    bin_dir: Path, form: str = "auto", built: Built | None = None
) -> tuple[str, list[Path]]:
    """Put the launchers into a folder.

    Args:
        bin_dir: where the programs go; it must exist.
        form: "c", "sh", or "auto": C where it can be compiled.
        built: what to build in; default this installation.

    Returns:
        The form that was used, and the programs' paths.

    Raises:
        UsageError: a path cannot be built in.
        HostError: form "c" and no compiler, or the compiler failed.
    """
    built = built or default_built()
    built.check()
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if form == "auto":
        form = "c" if compiler else "sh"
    data = compile_launcher(built, compiler) if form == "c" else _script(built)
    made = []
    for name in PROGRAMS:
        path = bin_dir / name
        write_atomic(str(path), data, mode=0o755)
        made.append(path)
    return form, made


def compile_launcher(built: Built, compiler: str | None, *flags: str) -> bytes:
    """Return the compiled launcher, static where the C library allows.

    Raises:
        HostError: there is no compiler, or it failed.
    """
    if compiler is None:
        raise HostError(
            "no C compiler on PATH", hint="install gcc and libc6-dev, or use --form sh"
        )
    defines = [
        f'-DNVCT_PYTHON="{built.python}"',
        f'-DNVCT_PACKAGES="{built.packages}"',
        f'-DNVCT_COLD="{built.cold}"',
    ]
    with tempfile.TemporaryDirectory(prefix="nvct-launcher-") as folder:
        out = Path(folder, "launcher")
        command = [compiler, "-O2", "-Wall", "-Wextra", "-s", *flags, *defines, "-o", str(out)]
        said = ""
        for static in (["-static"], []):
            done = subprocess.run(
                [*command, *static, str(SOURCE)], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return out.read_bytes()
            said = done.stderr.strip()
    raise HostError(f"{compiler} could not compile {SOURCE}: {said.splitlines()[-1:]}")


def _script(built: Built) -> bytes:
    text = SCRIPT.read_text(encoding="utf-8")
    for key, value in (
        ("@PYTHON@", built.python),
        ("@PACKAGES@", built.packages),
        ("@COLD@", built.cold),
    ):
        text = text.replace(key, value)
    return text.encode()
