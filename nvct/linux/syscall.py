# SPDX-License-Identifier: Apache-2.0
"""The function `syscall(nr, *args)`, and system call numbers by machine.

The first call selects one of two backends: the builtin module `_nvct` of the static interpreter
(`_nvct.syscall(nr, *args)` returns -errno on failure, as the kernel does), or libc's syscall(2)
through `_ctypes`, without the package `ctypes`.

Why not cffi or `ctypes`: CPU that the first call adds to `python3 -I -S` (minimum of 60 runs,
Python 3.11, x86_64): `_ctypes` 0.8 ms, cffi out of line 0.9, `ctypes` 3.7. The static interpreter
cannot load any of the three.
"""

from __future__ import annotations

import posix

from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Argument: TypeAlias = "int | bytes | None"
    Backend: TypeAlias = Callable[..., int]

# Linux, asm/unistd_64.h and asm-generic/unistd.h: calls since 5.0 have one number everywhere.
_NEWER = {"open_tree": 428, "move_mount": 429, "mount_setattr": 442}
_BY_MACHINE = {
    "x86_64": {
        "mount": 165, "umount2": 166, "setns": 308, "unshare": 272, "bpf": 321, "prctl": 157,
        "capset": 126, "seccomp": 317, "inotify_init1": 294, "inotify_add_watch": 254,
        "inotify_rm_watch": 255,
    },
    "aarch64": {
        "mount": 40, "umount2": 39, "setns": 268, "unshare": 97, "bpf": 280, "prctl": 167,
        "capset": 91, "seccomp": 277, "inotify_init1": 26, "inotify_add_watch": 27,
        "inotify_rm_watch": 28,
    },
}  # fmt: skip

_backends: list[Backend] = []
_BYTES_HEADER = bytes.__basicsize__ - 1


def number(name: str, machine: str = "") -> int:
    """Return a system call's number, by default of this machine; HostError if it is unknown."""
    machine = machine or posix.uname().machine
    table = _BY_MACHINE.get(machine)
    if table is None:
        raise HostError(
            f"nvct does not know the system calls of a {machine} machine",
            hint="x86_64 and aarch64 are supported",
        )
    nr = _NEWER.get(name) or table.get(name)
    if nr is None:
        raise HostError(f"system call {name} has no known number on {machine}")
    return nr


def syscall(nr: int, *args: Argument) -> int:
    """Make system call `nr`; bytes are passed by address, with a final NUL; None is NULL.

    OSError with errno and its text; the caller adds the path.
    """
    if not _backends:
        _backends.append(_choose())
    return _backends[0](nr, *args)


def _choose() -> Backend:
    """Return the builtin of the static interpreter if it exists: it needs no dlopen."""
    import sys

    return _builtin() if "_nvct" in sys.builtin_module_names else _through_libc()


def _builtin() -> Backend:
    import _nvct  # type: ignore[import-not-found]  # only the static interpreter has it

    raw: Backend = _nvct.syscall

    def call(nr: int, *args: Argument) -> int:
        result = raw(nr, *args)
        if result < 0:
            raise OSError(-result, posix.strerror(-result))
        return result

    return call


def _through_libc() -> Backend:
    import _ctypes

    simple: Any = _ctypes._SimpleCData  # noqa: SLF001 - its public name is in `ctypes`

    class Long(simple):  # type: ignore[misc]  # generic for mypy, not at run time
        _type_ = "l"  # 64 bits, unlike the C int that ctypes would make of a bare int

    class Pointer(simple):  # type: ignore[misc]  # as above
        _type_ = "z"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Long

    # Both machines pass variadic and fixed arguments alike (registers, 64 bits each).
    itself: Any = None  # dlopen(NULL): everything that this process has loaded, glibc or musl
    function = Function(_ctypes.dlsym(_ctypes.dlopen(itself, 0), "syscall"))

    def call(nr: int, *args: Argument) -> int:
        converted = [Long(a) if isinstance(a, int) else Pointer(a) for a in args]
        result: int = function(Long(nr), *converted)
        if result < 0:
            errno = _ctypes.get_errno()
            raise OSError(errno, posix.strerror(errno))
        return result

    return call


def address(data: bytes) -> int:
    """Return the address of the content of a bytes object; in CPython a fixed header precedes it.

    The object must live as long as the address is used. (ctypes would cost 3 ms.)
    """
    return id(data) + _BYTES_HEADER
