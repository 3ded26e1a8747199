# SPDX-License-Identifier: Apache-2.0
"""Files of the host: written in one step, read with a limit, locked, told apart.

Contract: a reader sees the old file or the new one, never a part; who is killed half-way leaves
the old one and at most one `.nvct-*` file beside it. For files inside a container see `root`.
"""

from __future__ import annotations

import fcntl
import posix
from errno import ELOOP, ENXIO

from nvct.errors import DocumentError, HostError, UnsafePathError
from nvct.linux import constants
from nvct.linux.kernel import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import stat_result
    from types import TracebackType
    from typing import TypeAlias

    from typing_extensions import Self

    from nvct.linux.kernel import Kernel

    Signature: TypeAlias = tuple[int, int, int, int, int]

MIB = 1 << 20
LINK_LIMIT = 40  # the kernel's MAXSYMLINKS
TEMPORARY_PREFIX = ".nvct-"


def write_atomic(
    path: str,
    data: bytes,
    *,
    mode: int | None = None,
    sync: bool = False,
    kernel: Kernel = KERNEL,
) -> None:
    """Put `data` in place of the file at `path` by a temporary file and rename.

    A symbolic link at `path` stays, and the file it leads to is replaced. Mode and owner of an
    existing file are kept; `mode`, where given, is set whatever the umask; a new file without it
    gets 0666 less the umask. `sync` waits for the disk before and after the rename.

    Raises:
        UnsafePathError: no regular file is there, or a link or file of another user lies in a
            world-writable directory (as fs.protected_symlinks and protected_regular refuse it).
        OSError: with the path; nothing was changed, and no temporary file is left.
    """
    dir_fd, name, old = _place(path, kernel)
    try:
        _replace(dir_fd, name, data, old, mode, sync=sync, kernel=kernel)
    except OSError as error:
        if error.filename == path:
            raise
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        kernel.close(dir_fd)


def _place(path: str, kernel: Kernel) -> tuple[int, str, stat_result | None]:
    """Follow links at `path`; return its directory's descriptor, its name, and what is there."""
    where = path
    for _ in range(LINK_LIMIT + 1):
        folder, name = split(where)
        if name in ("", ".", ".."):
            raise UnsafePathError(f"{path} is a directory", hint="name a file")
        dir_fd = kernel.open(folder, posix.O_PATH | posix.O_DIRECTORY)
        try:
            old = lstat_or_none(name, dir_fd)
            kind = constants.S_IFREG if old is None else old.st_mode & constants.S_IFMT
            if old is not None:
                _check_owner(path, old, posix.fstat(dir_fd))
            if kind == constants.S_IFREG:
                kept, dir_fd = dir_fd, -1
                return kept, name, old
            if kind != constants.S_IFLNK:
                raise UnsafePathError(f"{path} is no regular file", hint="name a file")
            target = posix.readlink(name, dir_fd=dir_fd)
        finally:
            if dir_fd >= 0:
                kernel.close(dir_fd)
        where = target if target.startswith("/") else f"{folder}/{target}"
    raise UnsafePathError(f"{path} leads through more than {LINK_LIMIT} symbolic links")


def _check_owner(path: str, found: stat_result, folder: stat_result) -> None:
    """Refuse what another user put into a directory that everybody may write to, as /tmp."""
    shared = constants.S_ISVTX | 0o002
    if folder.st_mode & shared != shared:
        return
    if found.st_uid not in (posix.geteuid(), folder.st_uid):
        raise UnsafePathError(
            f"{path} belongs to uid {found.st_uid} in a world-writable directory",
            hint="remove it or write to another directory",
        )


def _replace(
    dir_fd: int,
    name: str,
    data: bytes,
    old: stat_result | None,
    mode: int | None,
    *,
    sync: bool,
    kernel: Kernel,
) -> None:
    if mode is None and old is not None:
        mode = old.st_mode & 0o7777
    owner = None if old is None else (old.st_uid, old.st_gid)
    temporary = write_temporary(dir_fd, data, mode, owner=owner, sync=sync, kernel=kernel)
    try:
        kernel.rename(temporary, name, source_dir_fd=dir_fd, target_dir_fd=dir_fd)
    except BaseException:
        discard(temporary, dir_fd, kernel)
        raise
    if sync:
        folder = kernel.open(".", posix.O_RDONLY | posix.O_DIRECTORY, dir_fd=dir_fd)
        try:
            kernel.fsync(folder)
        finally:
            kernel.close(folder)


def write_temporary(
    dir_fd: int,
    data: bytes,
    mode: int | None,
    *,
    owner: tuple[int, int] | None = None,
    sync: bool = False,
    kernel: Kernel = KERNEL,
) -> str:
    """Write a new file under a name nobody can guess; return the name.

    Raises:
        OSError: and the file is gone again.
    """
    name = temporary_name()
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW
    fd = kernel.open(name, flags, 0o666 if mode is None else 0o600, dir_fd=dir_fd)
    try:
        try:
            made = posix.fstat(fd)
            if owner is not None and owner != (made.st_uid, made.st_gid):
                kernel.fchown(fd, *owner)
            rest = data
            while rest:
                rest = rest[kernel.write(fd, rest) :]
            if mode is not None:
                kernel.fchmod(fd, mode)
            if sync:
                kernel.fsync(fd)
        finally:
            kernel.close(fd)
    except BaseException:
        discard(name, dir_fd, kernel)
        raise
    return name


def temporary_name() -> str:
    """Return a file name that no other process uses or can foresee."""
    return TEMPORARY_PREFIX + posix.urandom(8).hex()


def discard(name: str, dir_fd: int, kernel: Kernel) -> None:
    """Remove a temporary file; the error that led here matters more than one of this."""
    try:
        kernel.unlink(name, dir_fd=dir_fd)
    except OSError:
        pass


def read_bytes(
    path: str,
    limit: int = 64 * MIB,
    *,
    check: Callable[[str, stat_result], None] | None = None,
) -> bytes:
    """Return the content of a regular file of the host, procfs and sysfs included.

    `check` may refuse the file by the status of what was opened.

    Raises:
        DocumentError: larger than `limit`, or no regular file (a FIFO is not waited for), or the
            path is none.
        OSError: absent or not readable.
    """
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY)
    except ValueError as error:  # it comes out of JSON, which can say more than a path can
        raise DocumentError(f"{path!r} is no path: it holds a NUL, say") from error
    try:
        found = posix.fstat(fd)
        if found.st_mode & constants.S_IFMT != constants.S_IFREG:
            raise DocumentError(f"{path} is no regular file")
        if check is not None:
            check(path, found)
        data = read_all(fd, found.st_size, limit)
    finally:
        posix.close(fd)
    if data is None:
        raise DocumentError(f"{path} is larger than {limit} bytes")
    return data


def open_log(path: str) -> int:
    """Open a log of the host to append to, and make it where it is absent; return its descriptor.

    A log may lie where others can put something in its place: a link is not followed, and nobody
    waits for the reader of a FIFO.

    Raises:
        DocumentError: it is a link, or no regular file.
        OSError: it cannot be written.
    """
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC
    flags |= posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY
    try:
        fd = posix.open(path, flags, 0o644)
    except OSError as error:
        if error.errno in (ELOOP, ENXIO):
            raise DocumentError(f"{path} is a link or a FIFO: a log is a regular file") from error
        raise
    if posix.fstat(fd).st_mode & constants.S_IFMT != constants.S_IFREG:
        posix.close(fd)
        raise DocumentError(f"{path} is no regular file, as a log is")
    return fd


def read_all(fd: int, size: int, limit: int) -> bytes | None:
    """Read a file to its end, `size` being what stat says; None if there is more than `limit`."""
    if size > limit:
        return None
    # One byte more than there should be shows the end, or that the file grew. A procfs file says
    # size 0 and must be asked for in one go: a sysctl has nothing to say at any other offset.
    data = posix.read(fd, max(size, min(64 << 10, limit)) + 1)
    if len(data) == size and size:
        return data
    parts = [data]
    total = len(data)
    while parts[-1] and total <= limit:
        parts.append(posix.read(fd, min(64 << 10, limit + 1 - total)))
        total += len(parts[-1])
    return None if total > limit else b"".join(parts)


def signature(path: str) -> Signature | None:
    """Return (device, inode, size, mtime in ns, uid) of what `path` names; None if absent.

    Raises:
        OSError: it cannot be told, EACCES for instance.
    """
    try:
        found = posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_uid


def lstat_or_none(name: str, dir_fd: int | None) -> stat_result | None:
    """Return the status of a name itself, or None if there is no such name."""
    try:
        return posix.lstat(name, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def split(path: str) -> tuple[str, str]:
    """Return directory and name of a path; the directory is never empty."""
    folder, slash, name = path.rpartition("/")
    if not slash:
        return ".", name
    return folder.rstrip("/") or "/", name


class Lock:
    """An exclusive lock (flock) on a file that is made for it and stays.

    Args:
        path: the lock file; a symbolic link is refused.
        timeout_s: how long to wait for another holder.

    Raises (on entering):
        HostError: another process holds it for longer than that.
        OSError: the file cannot be made.
    """

    __slots__ = ("fd", "path", "timeout_s")

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.fd = -1

    def __enter__(self) -> Self:
        import time  # a builtin module; here because only who locks needs it

        end = time.monotonic() + self.timeout_s
        while not self._try():
            if time.monotonic() >= end:
                raise HostError(
                    f"{self.path} has been locked by another process for {self.timeout_s:g} s",
                    hint="see who holds it: fuser -v " + self.path[-60:],
                )
            time.sleep(0.01)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        fd, self.fd = self.fd, -1
        posix.close(fd)

    def _try(self) -> bool:
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_NONBLOCK
        fd = posix.open(self.path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine, there = posix.fstat(fd), lstat_or_none(self.path, None)
            if there and (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
                self.fd = fd  # else it was removed or replaced meanwhile: lock the new one
        except BlockingIOError:
            pass
        finally:
            if self.fd < 0:
                posix.close(fd)
        return self.fd >= 0
