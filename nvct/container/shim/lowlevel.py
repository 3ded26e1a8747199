# SPDX-License-Identifier: Apache-2.0
"""Finds and executes the low-level runtime.

Hot. The search is the incumbent's (v1.20): the first candidate that is an executable file is
used; names without a slash are looked up in PATH, then in the default folders.
"""

from __future__ import annotations

import posix

from nvct.errors import RuntimeNotFoundError
from nvct.paths import DEFAULT_PATH_DIRS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

X_OK = 1
S_IFMT, S_IFREG = 0o170000, 0o100000


def find(candidates: Sequence[str], path: str) -> str:
    """Return the path of the first candidate that is executable.

    Raises:
        RuntimeNotFoundError: no candidate is executable.
    """
    for name in candidates:
        if "/" in name:
            if _executable(name):
                return name
            continue
        for folder in (*path.split(":"), *DEFAULT_PATH_DIRS):
            if folder and _executable(f"{folder}/{name}"):
                return f"{folder}/{name}"
    raise RuntimeNotFoundError(
        f"none of the low-level runtimes {', '.join(candidates) or '(empty list)'} is installed",
        hint="install runc, or set nvidia-container-runtime.runtimes in config.toml",
    )


def _executable(path: str) -> bool:
    try:
        return posix.stat(path).st_mode & S_IFMT == S_IFREG and posix.access(path, X_OK)
    except OSError:
        return False


def become(path: str, args: list[str]) -> NoReturn:
    """Execute the low-level runtime with our arguments and environment, unchanged.

    Raises:
        RuntimeNotFoundError: the runtime cannot be executed.
    """
    from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

    # Python ignores both signals; the runtime and the container would inherit that.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    try:
        posix.execve(path, [path, *args], _environment())
    except OSError as error:
        raise RuntimeNotFoundError(
            f"cannot execute {path}: {error.strerror}",
            hint="is it a program for this machine? see runtimes in config.toml",
        ) from error


def _environment() -> dict[bytes, bytes]:
    """Return the environment that this process was started with.

    In the C locale Python sets LC_CTYPE (PEP 538, also with -I), and the low-level runtime would
    inherit it.
    """
    env = dict(posix.environ)
    if env.get(b"LC_CTYPE") != b"C.UTF-8":
        return env
    fd = posix.open("/proc/self/environ", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        data = b""
        while part := posix.read(fd, 1 << 17):
            data += part
    finally:
        posix.close(fd)
    del env[b"LC_CTYPE"]
    for entry in data.split(b"\0"):
        if entry.startswith(b"LC_CTYPE="):
            env[b"LC_CTYPE"] = entry[9:]
    return env
