# SPDX-License-Identifier: Apache-2.0
"""Installs the launchers: the programs that start the hot side.

Cold. The launcher is a static C program with several names, if there is a compiler; or nvct-hot,
the static executable with an interpreter from packaging/static; else a shell script for the
runtimes only, because hooks need a static program. The paths of the interpreter and of nvct are
built in, so neither environment nor working directory affects the code that root runs.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from nvct import paths
from nvct.errors import HostError, OSErrorsAs, UsageError
from nvct.launcher.cold import interpreter
from nvct.linux.files import write_atomic

RUNTIMES = paths.SHIM_PROGRAMS
HOOKS = (
    paths.HOOK_PROGRAM, paths.RUNTIME_HOOK_PROGRAM, paths.RUNTIME_HOOK_ALIAS, paths.CTK_PROGRAM,
    "nvct",
)  # fmt: skip
"""Programs that CDI specs or engines use as hooks, with the environment of an image. Only a static
program is safe: a shell or a dynamic program loads LD_PRELOAD before its first line. nvidia-ctk
and nvct are the command line; the launcher handles their command `hook`."""
PROGRAMS = RUNTIMES + HOOKS
SOURCE = Path(__file__).with_name("launcher.c")
SCRIPT = """\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
exec "{python}" -I -S -c "{boot}from nvct.container.shim.main import main;main('{cold}')" \
  "${{0##*/}}" "$@"
"""
"""The launcher of the runtimes where there is no compiler."""
FLAGS = (
    "-O2", "-Wall", "-Wextra", "-s", "-fPIE", "-fstack-protector-strong", "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now,-z,noexecstack",
)  # fmt: skip
"""Flags for launchers, programs of the bundle, and wrappers."""
HOOK_MARK = b"nvct.container.cdi_hook.launch"  # A string in each launcher for hooks
FORMS = ("auto", "c", "sh", "static")
COLD_MARK = b"@nvct cold side@"
"""Precedes the space for the cold side's path in nvct-hot (packaging/static/main.c)."""
COLD_ROOM = 1024
PT_INTERP = 3  # elf(5): the program header that names the dynamic loader
HOT_HINT = "make static builds it; --hot names it"
DIGEST_SIZE = 16  # nvct-hot ends with the digest of its sources (`nvct.launcher.archive.digest`)
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
"""The boot code of the interpreter. It uses the archive (`nvct.launcher.archive`) if root or this
user owns it, no other user can write it, and its byte code is for this interpreter; otherwise the
same modules come from the package folder. The code is short, because each start compiles it.
Garbage collection is off: it costs 2 to 5 % of a create, and exec frees everything. The code must
not contain double quotes or backslashes, because it is quoted in C and in sh."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """The paths that are built into a launcher."""

    python: str  # interpreter of the hot side, which needs only the standard library
    packages: str
    cold: str  # interpreter of the cold side, with the dependencies of nvct
    archive: str = ""
    # nvct-hot, or "". The C launcher starts it if it exists, else the interpreter. With form
    # "static" it is installed with the names of the programs
    hot: str = ""

    def check(self) -> None:
        """Raise UsageError for a relative path, or one that needs quoting."""
        optional = (self.archive or "/", self.hot or "/")
        for path in (self.python, self.packages, self.cold, *optional):
            if not path.startswith("/") or any(c in path for c in "\"'\\\n$`|&"):
                raise UsageError(
                    f"{path!r} cannot be built into a launcher",
                    hint="use absolute paths without quotes, $ or backslashes",
                )

    def boot(self) -> str:
        """Return the Python code that precedes `from MODULE import main`."""
        if not self.archive:
            return f"import sys;sys.path.append('{self.packages}');"
        return BOOT.format(packages=self.packages, archive=self.archive)


def default_built() -> Built:
    """Return the paths of this installation; the base interpreter of a venv starts faster."""
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
    """Install the launchers into a folder, and the archive of the hot side.

    Raises UsageError if a path is not allowed; HostError if there is no compiler for form "c",
    compiling or making the archive fails, nvct-hot is damaged or built from other sources, or a
    program cannot be written.

    Args:
        form: "c", "sh" (runtimes only), "static", or "auto": C with a compiler, else nvct-hot if
            `built` has it, else sh.
        built: the built-in paths, by default of this installation. Without an archive path, the
            archive is written into the __pycache__ of nvct if possible.
        archive: whether to make the archive now; a package makes it at its installation.

    Returns the form, and the paths of the programs and the archive. If no static program can be
    made, HOOKS are not installed, and launchers of hooks that are not static are removed.
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
    if archive and built.hot and os.path.exists(built.hot):  # a missing one is for another root
        check_hot(built.hot)
    if archive:
        try:
            built = replace(built, archive=make_archive(built))
        except HostError:
            if built.archive:
                raise
    data = compile_launcher(built, compiler) if form == "c" else fill_script(built)
    programs = _write(bin_dir, PROGRAMS if is_static(data) else RUNTIMES, data)
    _remove_unsafe_hooks(bin_dir)
    return form, programs + ([Path(built.archive)] if built.archive and archive else [])


def is_static(data: bytes) -> bool:
    """Report whether a 64-bit ELF program needs no dynamic loader (no PT_INTERP)."""
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
    """Remove launchers of hooks that an older nvct made and that are not static."""
    for name in HOOKS:
        path = bin_dir / name
        try:
            data = path.read_bytes()
            if HOOK_MARK in data and not is_static(data):
                path.unlink()
        except OSError:
            continue


def check_hot(path: str) -> None:
    """Raise HostError if nvct-hot was built from other sources than this nvct's, or is missing."""
    with OSErrorsAs(HostError, f"{path} cannot be read", hint=HOT_HINT), open(path, "rb") as file:
        file.seek(-DIGEST_SIZE, os.SEEK_END)
        is_current = file.read() == hot_digest().encode()
    if not is_current:
        raise HostError(f"{path} was built from other sources than this nvct's", hint=HOT_HINT)


@functools.cache
def hot_digest() -> str:
    """Return the digest of the hot side of this nvct."""
    from nvct.launcher import archive

    return archive.digest(archive.discover(Path(__file__).parents[2])[0])


def _write(bin_dir: Path, names: tuple[str, ...], data: bytes) -> list[Path]:
    written = [bin_dir / name for name in names]
    hint = "name an existing folder, or run as root"
    for path in written:
        with OSErrorsAs(HostError, f"{path} cannot be written", hint=hint):
            write_atomic(str(path), data, mode=0o755)
    return written


def make_archive(built: Built) -> str:
    """Make the archive with the interpreter that will read it; return its path.

    Raises HostError if making or writing it fails.
    """
    code = (
        "import sys;sys.path.append(sys.argv[1]);from pathlib import Path;"
        "from nvct.launcher import archive;print(archive.write(Path(sys.argv[1]),sys.argv[2]))"
    )
    completed = subprocess.run(
        # Without column numbers, which only tracebacks show, the archive is 10 % smaller.
        [built.python, "-I", "-S", "-X", "no_debug_ranges", "-c", code, built.packages,
         built.archive],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if completed.returncode:
        reason = (completed.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise HostError(
            f"{built.python} could not archive the hot side: {reason}",
            hint="--python must name a Python 3.10 or newer",
        )
    return completed.stdout.strip()


def compile_launcher(built: Built, compiler: str | None, *flags: str) -> bytes:
    """Return the compiled launcher, static if possible; HostError if it cannot be compiled."""
    if compiler is None:
        raise HostError(
            "no C compiler on PATH", hint="install gcc and libc6-dev, or use --form sh"
        )
    boot = built.boot().replace("\n", "\\n")
    paths_of = {"PYTHON": built.python, "BOOT": boot, "COLD": built.cold}
    defines = [f'-DNVCT_{name}="{path}"' for name, path in paths_of.items()]
    if built.hot:
        defines += [f'-DNVCT_HOT="{built.hot}"', f'-DNVCT_HOT_DIGEST="{hot_digest()}"']
    with tempfile.TemporaryDirectory(prefix="nvct-launcher-") as folder:
        out = Path(folder, "launcher")
        command = [compiler, *FLAGS, *flags, *defines, "-o", str(out), str(SOURCE)]
        output = ""
        for link in (static_pie(compiler), ["-static"], ["-pie"]):
            completed = subprocess.run(
                [*command, *link], capture_output=True, text=True, check=False
            )
            if completed.returncode:
                output = completed.stderr.strip()
                continue
            data = out.read_bytes()
            # Some compilers treat -static-pie as -pie.
            if link == ["-pie"] or is_static(data):
                return data
    reason = next((text for text in output.splitlines() if "error" in text), output[-200:])
    raise HostError(
        f"{compiler} could not compile {SOURCE}: {reason}",
        hint="install gcc and libc6-dev, or use --form sh",
    )


def fill_script(built: Built) -> bytes:
    """Return the launcher for /bin/sh."""
    return SCRIPT.format(python=built.python, boot=built.boot(), cold=built.cold).encode()


def static_pie(compiler: str) -> list[str]:
    """Return the flags by which a compiler links a static PIE; musl-gcc lacks -static-pie."""
    if os.path.basename(compiler) != "musl-gcc":
        return ["-static-pie"]
    folder = f"/usr/lib/{platform.machine()}-linux-musl"
    files = [f"{folder}/{name}" for name in ("rcrt1.o", "crti.o", "crtn.o")]
    return ["-static", "-nostartfiles", "-Wl,-pie,--no-dynamic-linker", *files]


def fill(program: bytes, mark: bytes, value: bytes, room: int) -> bytes:
    """Return a static program with a value in its slot.

    A slot is a mark and `room` bytes after it, which the program reads when it starts. Raises
    ValueError if the program has no such slot.
    """
    at = program.find(mark) + len(mark)
    if program.count(mark) != 1 or len(program) < at + room or program[:4] != b"\x7fELF":
        raise ValueError("no slot")
    return program[:at] + value.ljust(room, b"\0") + program[at + room :]


def fill_static(built: Built) -> bytes:
    """Return nvct-hot with the path of the cold side.

    Raises HostError if the file cannot be read or is not nvct-hot, or the path is too long.
    """
    path = built.hot or "nvct-hot"
    with OSErrorsAs(HostError, f"{path} cannot be read", hint=HOT_HINT):
        data = Path(path).read_bytes()
    cold = os.fsencode(built.cold)
    if len(cold) >= COLD_ROOM:
        raise HostError(f"{built.cold} is longer than {COLD_ROOM - 1} bytes")
    try:
        return fill(data, COLD_MARK, cold, COLD_ROOM)
    except ValueError as error:
        raise HostError(f"{path} is not nvct-hot", hint=HOT_HINT) from error
