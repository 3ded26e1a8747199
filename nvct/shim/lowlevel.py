# SPDX-License-Identifier: Apache-2.0
"""The low-level runtime: find it, and become it.

Hot. The search is the incumbent's (v1.20): the first candidate that is an executable file wins;
names without a slash are looked up in PATH, then in the usual folders.
"""

from __future__ import annotations

import posix

from nvct.errors import RuntimeNotFoundError
from nvct.paths import DEFAULT_PATH_DIRS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

X_OK = 1
S_IFMT, S_IFREG = 0o170000, 0o100000


def find(candidates: list[str], path: str) -> str:
    """Return the path of the first candidate that can be executed.

    Raises:
        RuntimeNotFoundError: none of them can.
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
        RuntimeNotFoundError: it cannot be executed.
    """
    from _signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal

    # Python ignores both; the runtime and the container would inherit that.
    signal(SIGPIPE, SIG_DFL)
    signal(SIGXFSZ, SIG_DFL)
    try:
        posix.execve(path, [path, *args], posix.environ)
    except OSError as error:
        raise RuntimeNotFoundError(f"cannot execute {path}: {error.strerror}") from error
