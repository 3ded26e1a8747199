# SPDX-License-Identifier: Apache-2.0
"""Install the launchers: the programs that start the hot side.

Cold. One static C program under several names where a compiler is at hand; or nvct-hot, the static
executable that packaging/static builds, which has an interpreter inside; else a shell script for
the runtimes alone, as only a static program may serve hooks.
The interpreter and the folder of nvct are built in, so that no environment variable and no
working directory has a say in what a process running as root loads.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from nvct.errors import HostError, UsageError
from nvct.launcher.cold import interpreter
from nvct.linux.files import write_atomic

RUNTIMES = (
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
)
HOOKS = (
    "nvidia-cdi-hook",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-ctk",
    "nvct",
)
"""What a CDI spec or an engine may name as a hook, and then start with the image's environment.
Only a static program is safe there: a shell or a dynamic program has loaded LD_PRELOAD before its
first line. nvidia-ctk and nvct are the command line; the launcher serves its command `hook`."""
PROGRAMS = RUNTIMES + HOOKS
SOURCE = Path(__file__).with_name("launcher.c")
SCRIPT = Path(__file__).with_name("launcher.sh")
FLAGS = (
    "-O2", "-Wall", "-Wextra", "-s", "-fPIE", "-fstack-protector-strong", "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now,-z,noexecstack",
)  # fmt: skip
"""Of the launchers, of the programs of the bundle, and of wrappers."""
LINKS = ("-static-pie", "-static", "-pie")
"""How launchers are linked: the first that the compiler can do."""
OURS = b"nvct.container.cdi_hook.launch"
"""Stands in each launcher that serves hooks."""
FORMS = ("auto", "c", "sh", "static")
COLD_MARK = b"@nvct cold side@"
"""Stands in nvct-hot (packaging/static/main.c) before the room for the cold side's path."""
COLD_ROOM = 1024
PT_INTERP = 3
"""elf(5): the program header that names the dynamic loader."""
HOT_HINT = "make static builds it; --hot names it"
DIGEST_SIZE = 16
"""The last bytes of nvct-hot say of which sources it is (`nvct.launcher.archive.digest`)."""
BOOT = """\
import sys,posix,gc,marshal,_frozen_importlib_external as e
gc.disable();sys.path.append('{packages}')
try:
 f=posix.open('{archive}',0);s=posix.fstat(f);h=posix.read(f,8)
 if s.st_uid in(0,posix.geteuid())and not s.st_mode&18 and h[:4]==e.MAGIC_NUMBER:
  n=int.from_bytes(h[4:],'little');c,*a=marshal.loads(posix.read(f,n))
  g={{}};exec(c,g);g['install'](f,n+8,*a)
except Exception:pass
"""
"""What an interpreter runs first: use the archive if it is root's or ours, nobody else may write
it, and its byte code is this interpreter's (`nvct.launcher.archive` describes it). Whatever is
wrong with it, the package folder has the same modules. Short, as it is compiled at every start. No
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
        cold=interpreter(),
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
        form: "c", "sh" (runtimes only), "static", or "auto": C where it can be compiled, nvct-hot
            where that is named, else sh.
        built: what to build in; default this installation. Where it names no archive, one is
            made in nvct's own __pycache__ if that can be written.
        cc: the C compiler.
        archive: make the archive now; a package makes it where it is installed.

    Returns:
        The form that was used, and the paths of the programs and the archive. Without HOOKS where
        no static program could be made; older ones of nvct that are not static are removed.

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
        form = "c" if compiler else "static" if built.hot else "sh"
    if form == "static":
        data = fill_static(built)
        check_hot(built.hot)
        return form, _write(bin_dir, PROGRAMS, data)
    if archive and built.hot and os.path.exists(built.hot):  # else they are for another root
        check_hot(built.hot)
    if archive:
        try:
            built = replace(built, archive=make_archive(built))
        except HostError:
            if built.archive:
                raise
    data = compile_launcher(built, compiler) if form == "c" else fill_script(built)
    made = _write(bin_dir, PROGRAMS if is_static(data) else RUNTIMES, data)
    _remove_unsafe_hooks(bin_dir)
    return form, made + ([Path(built.archive)] if built.archive and archive else [])


def is_static(data: bytes) -> bool:
    """Return whether an ELF program of 64 bits runs without a dynamic loader (no PT_INTERP)."""
    try:
        if data[:5] != b"\x7fELF\x02":
            return False
        order = "<" if data[5] == 1 else ">"
        (first,) = struct.unpack_from(f"{order}Q", data, 32)
        size, count = struct.unpack_from(f"{order}HH", data, 54)
        kinds = [struct.unpack_from(f"{order}I", data, first + i * size)[0] for i in range(count)]
    except struct.error:
        return False
    return bool(kinds) and PT_INTERP not in kinds


def _remove_unsafe_hooks(bin_dir: Path) -> None:
    """Remove launchers of hooks that an older nvct has left and that are not static."""
    for name in HOOKS:
        path = bin_dir / name
        try:
            data = path.read_bytes()
            if OURS in data and not is_static(data):
                path.unlink()
        except OSError:
            continue


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
    from nvct.launcher import archive  # its interpreter makes it elsewhere

    return archive.digest(archive.discover(Path(__file__).parents[2])[0])


def _write(bin_dir: Path, names: tuple[str, ...], data: bytes) -> list[Path]:
    made = []
    for name in names:
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
        "from nvct.launcher import archive;print(archive.write(Path(sys.argv[1]),sys.argv[2]))"
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
    """Return the compiled launcher, static where the C library allows, else position-independent.

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
        command = [compiler, *FLAGS, *flags, *defines, "-o", str(out), str(SOURCE)]
        said = ""
        for link in LINKS:
            done = subprocess.run([*command, link], capture_output=True, text=True, check=False)
            if done.returncode:
                said = done.stderr.strip()
                continue
            data = out.read_bytes()
            # musl-gcc takes -static-pie for -pie.
            if link == LINKS[-1] or is_static(data):
                return data
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
