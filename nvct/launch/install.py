# SPDX-License-Identifier: Apache-2.0
"""Install the launchers: the programs that start the hot side.

Cold. One static C program under several names where a compiler is at hand, else one shell script;
or nvct-hot, the static executable that packaging/static builds, which has an interpreter inside.
The interpreter and the folder of nvct are built in, so that no environment variable and no
working directory has a say in what a process running as root loads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from nvct.errors import HostError, UsageError
from nvct.linux.files import write_atomic

PROGRAMS = (
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-cdi-hook",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
)
SOURCE = Path(__file__).with_name("launcher.c")
SCRIPT = Path(__file__).with_name("launcher.sh")
FORMS = ("auto", "c", "sh", "static")
COLD_MARK = b"@nvct cold side@"
"""Stands in nvct-hot (packaging/static/main.c) before the room for the cold side's path."""
COLD_ROOM = 1024
HOT_HINT = "make static builds it; --hot names it"
DIGEST_SIZE = 16
"""The last bytes of nvct-hot say of which sources it is (`nvct.launch.archive.digest`)."""
BOOT = """\
import sys,posix,gc,marshal,_frozen_importlib_external as e
gc.disable();sys.path.append('{packages}')
try:
 f=posix.open('{archive}',0);s=posix.fstat(f);h=posix.read(f,16384)
 if s.st_uid in(0,posix.geteuid())and not s.st_mode&18 and h[:4]==e.MAGIC_NUMBER:
  c,*a=marshal.loads(h[4:]);g={{}};exec(c,g);g['install'](f,*a)
except Exception:pass
"""
"""What an interpreter runs first: use the archive if it is root's or ours, nobody else may write
it, and its byte code is this interpreter's (`nvct.launch.archive` describes it). Whatever is wrong
with it, the package folder has the same modules. Short, as it is compiled at every start. No
garbage is collected: looking for cycles costs 2 to 5 % of a create, and exec is the end of all.
No double quotes, no backslashes: it stands in a C string and in a shell's quotes."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """What is built into a launcher.

    Attributes:
        python: interpreter of the hot side; needs nothing but the standard library.
        packages: the folder that holds the package nvct.
        cold: interpreter of the cold side, which has nvct's dependencies.
        archive: the hot side in one file, "" where there is none.
        hot: nvct-hot. The C launcher starts it where it is there, else the interpreter; "" for
            never. For form "static", what is installed under the programs' names.
    """

    python: str
    packages: str
    cold: str
    archive: str = ""
    hot: str = ""

    def check(self) -> None:
        """Refuse paths that would need quoting, and relative ones.

        Raises:
            UsageError: a path cannot be built in.
        """
        optional = (self.archive or "/", self.hot or "/")
        for path in (self.python, self.packages, self.cold, *optional):
            if not path.startswith("/") or any(c in path for c in "\"'\\\n$`|&"):
                raise UsageError(
                    f"{path!r} cannot be built into a launcher",
                    hint="use absolute paths without quotes, $ or backslashes",
                )

    def boot(self) -> str:
        """Return the Python that stands before `from MODULE import main`."""
        if not self.archive:
            return f"import sys;sys.path.append('{self.packages}');"
        return BOOT.format(packages=self.packages, archive=self.archive)


def default_built() -> Built:
    """Return this installation's paths: the base interpreter of a venv starts faster."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return Built(
        python=os.path.realpath(base),
        packages=str(Path(__file__).resolve().parents[2]),
        cold=sys.executable,
    )


def install(
    bin_dir: Path,
    form: str = "auto",
    built: Built | None = None,
    cc: str = "cc",
    *,
    archive: bool = True,
) -> tuple[str, list[Path]]:
    """Put the launchers into a folder, and the archive of the hot side in its place.

    Args:
        bin_dir: where the programs go; it must exist.
        form: "c", "sh", "static", or "auto": C where it can be compiled.
        built: what to build in; default this installation. Where it names no archive, one is
            made in nvct's own __pycache__ if that can be written.
        cc: the C compiler.
        archive: make the archive now; a package makes it where it is installed.

    Returns:
        The form that was used, and the paths of the programs and the archive.

    Raises:
        UsageError: a path cannot be built in.
        HostError: form "c" and no compiler, the compiler failed, or so did a named archive; form
            "static" and nvct-hot is not one; nvct-hot is another nvct's; or a program cannot be
            written.
    """
    built = built or default_built()
    built.check()
    compiler = shutil.which(cc)
    if form == "auto":
        form = "c" if compiler else "sh"
    if form == "static":
        data = fill_static(built)
        check_hot(built.hot)
        return form, _write(bin_dir, data)
    if archive and built.hot and os.path.exists(built.hot):  # else they are for another root
        check_hot(built.hot)
    if archive:
        try:
            built = replace(built, archive=make_archive(built))
        except HostError:
            if built.archive:
                raise
    data = compile_launcher(built, compiler) if form == "c" else fill_script(built)
    made = _write(bin_dir, data)
    return form, made + ([Path(built.archive)] if built.archive and archive else [])


def check_hot(path: str) -> None:
    """Refuse an nvct-hot that was not built from the sources of this nvct.

    Raises:
        HostError: it is of others, or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            file.seek(-DIGEST_SIZE, os.SEEK_END)
            same = file.read() == hot_digest().encode()
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}", hint=HOT_HINT) from error
    if not same:
        raise HostError(f"{path} was built from other sources than this nvct's", hint=HOT_HINT)


def hot_digest() -> str:
    """Return the digest of this nvct's hot side."""
    from nvct.launch import archive  # its interpreter makes it elsewhere

    return archive.digest(archive.discover(Path(__file__).parents[2])[0])


def _write(bin_dir: Path, data: bytes) -> list[Path]:
    made = []
    for name in PROGRAMS:
        path = bin_dir / name
        try:
            write_atomic(str(path), data, mode=0o755)
        except OSError as error:
            raise HostError(
                f"{path} cannot be written: {error.strerror}",
                hint="name a folder that is there, or run as root",
            ) from error
        made.append(path)
    return made


def make_archive(built: Built) -> str:
    """Make the archive with the interpreter that will read it; return its path.

    Raises:
        HostError: that failed, or it cannot be written.
    """
    code = (
        "import sys;sys.path.append(sys.argv[1]);from pathlib import Path;"
        "from nvct.launch import archive;print(archive.write(Path(sys.argv[1]),sys.argv[2]))"
    )
    done = subprocess.run(
        # Without the columns of a line, which only tracebacks show, it is a tenth smaller.
        [built.python, "-I", "-S", "-X", "no_debug_ranges", "-c", code, built.packages,
         built.archive],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(
            f"{built.python} could not archive the hot side: {reason}",
            hint="--python must name a Python 3.10 or newer",
        )
    return done.stdout.strip()


def compile_launcher(built: Built, compiler: str | None, *flags: str) -> bytes:
    """Return the compiled launcher, static where the C library allows.

    Raises:
        HostError: there is no compiler, or it failed.
    """
    if compiler is None:
        raise HostError(
            "no C compiler on PATH", hint="install gcc and libc6-dev, or use --form sh"
        )
    boot = built.boot().replace("\n", "\\n")
    defines = [
        f'-DNVCT_PYTHON="{built.python}"',
        f'-DNVCT_BOOT="{boot}"',
        f'-DNVCT_COLD="{built.cold}"',
    ]
    if built.hot:
        defines += [f'-DNVCT_HOT="{built.hot}"', f'-DNVCT_HOT_DIGEST="{hot_digest()}"']
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
    reason = next((text for text in said.splitlines() if "error" in text), said[-200:])
    raise HostError(
        f"{compiler} could not compile {SOURCE}: {reason}",
        hint="install gcc and libc6-dev, or use --form sh",
    )


def fill_script(built: Built) -> bytes:
    """Return the launcher for /bin/sh."""
    text = SCRIPT.read_text(encoding="utf-8")
    for key, value in (
        ("@PYTHON@", built.python),
        ("@BOOT@", built.boot()),
        ("@COLD@", built.cold),
    ):
        text = text.replace(key, value)
    return text.encode()


def fill_static(built: Built) -> bytes:
    """Return nvct-hot with the cold side's path in it.

    Raises:
        HostError: it cannot be read, is no nvct-hot, or has no room for the path.
    """
    path = built.hot or "nvct-hot"
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror}", hint=HOT_HINT) from error
    at = data.find(COLD_MARK) + len(COLD_MARK)
    if data.count(COLD_MARK) != 1 or len(data) < at + COLD_ROOM or data[:4] != b"\x7fELF":
        raise HostError(f"{path} is no nvct-hot", hint=HOT_HINT)
    cold = os.fsencode(built.cold)
    if len(cold) >= COLD_ROOM:
        raise HostError(f"{built.cold} is longer than {COLD_ROOM - 1} bytes")
    return data[:at] + cold.ljust(COLD_ROOM, b"\0") + data[at + COLD_ROOM :]
