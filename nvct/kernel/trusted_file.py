# SPDX-License-Identifier: Apache-2.0
"""Opens a library or program for a process with many rights, if only root can change it.

The file is opened below a root as `nvct.linux.root` walks: links are resolved in that root. It and
each folder on the way must belong to root or this user, and no other user may write to them,
except to folders with the sticky bit, where others can add names but not replace root's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from nvct.errors import HostError, UnsafePathError
from nvct.linux.kernel import KERNEL
from nvct.linux.root import Root
from nvct.linux.walk import FOLLOW, Location, walk

OTHERS_MAY_WRITE = 0o022


class _Location(Location):
    """A walk that enters no folder that others can change."""

    def down(self, name: str, fd: int) -> None:
        """Continue in an open directory; UnsafePathError if others can change it."""
        super().down(name, fd)
        self.check(fd, self.shown())

    def check(self, fd: int, shown: str, *, is_file: bool = False) -> None:
        """Raise UnsafePathError if it is not a regular file, or others can change it."""
        status = os.fstat(fd)
        if is_file and not stat.S_ISREG(status.st_mode):
            raise self.unsafe("is not a regular file")
        is_shared = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or (
            status.st_mode & OTHERS_MAY_WRITE and not is_shared
        ):
            raise UnsafePathError(
                f"{self.path} below {self.label} is not used: others than root can change {shown}",
                hint=f"chown root and chmod go-w {self.label.rstrip('/')}{shown}",
            )


def open_trusted(root: str, path: str) -> int:
    """Open a library or program for reading; return its descriptor.

    Raises:
        FileNotFoundError: the file is missing.
        HostError: the root is missing.
        UnsafePathError: others can change it, or it is not a regular file.
        OSError: it cannot be opened.
    """
    with Root.open(root) as opened:
        location = _Location(opened.fd, path, root)
        location.check(opened.fd, "/")
        with walk(location, FOLLOW, None, KERNEL):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(location.leaf or ".", flags, dir_fd=location.dir_fd)
            try:
                location.check(fd, location.shown(), is_file=True)
            except BaseException:
                os.close(fd)
                raise
            return fd


def find_program(root: str, folders: Iterable[str], name: str) -> str | None:
    """Return the path, below a root, of the first trusted program of a name; None without any.

    Raises UnsafePathError if others can change each file of the name.
    """
    refusal = None
    for folder in folders:
        path = f"{folder.rstrip('/')}/{name}"
        try:
            fd = open_trusted(root, path)
        except UnsafePathError as error:
            refusal = refusal or (error if os.path.exists(f"{root.rstrip('/')}{path}") else None)
            continue
        except (OSError, HostError):
            continue
        is_program = bool(os.fstat(fd).st_mode & 0o111)
        os.close(fd)
        if is_program:
            return path
    if refusal:
        raise refusal
    return None
