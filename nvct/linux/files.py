# SPDX-License-Identifier: Apache-2.0
"""Files of the host: atomic writes, reads with a limit, locks, signatures.

Contract: a reader sees the old file or the new one, never a part; a killed writer leaves the old
one and at most one `.nvct-*` file beside it. For files in a container see `root`.
"""

from __future__ import annotations

import fcntl
import posix
from errno import EINVAL, ELOOP, ENXIO

from nvct.errors import DocumentError, HostError, UnsafePathError
from nvct.linux import constants
from nvct.linux.kernel import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from os import stat_result
    from typing import TypeAlias

    from typing_extensions import Self

    from nvct.linux.kernel import Kernel

    Signature: TypeAlias = tuple[int, int, int, int, int]

MIB = 1 << 20
EVERY_ID = [b"0", b"0", b"4294967295"]
LINK_LIMIT = 40  # the kernel's MAXSYMLINKS
TEMPORARY_PREFIX = ".nvct-"
PAUSE_S = 0.01  # between two attempts to lock


def write_atomic(
    path: str,
    data: bytes,
    *,
    mode: int | None = None,
    sync: bool = True,
    follow: bool = False,
    kernel: Kernel = KERNEL,
) -> None:
    """Replace the file at `path` with `data` by a temporary file and rename.

    A symbolic link at `path` is replaced; with `follow` it stays, and its target is replaced: for
    files that an admin names or links. An existing file keeps its mode and owner. `mode` is
    independent of the umask; without it a new file gets 0666 less the umask. `sync` waits for the
    disk before and after the rename, so that no loss of power leaves an empty file; files that are
    made again anyway, and hot lanes, do without it.

    Raises:
        UnsafePathError: the path is not a regular file, or it is a link or file of another user in
            a world-writable directory (the rule of fs.protected_symlinks and protected_regular).
        OSError: with the path; nothing was changed, and no temporary file is left.
    """
    dir_fd, name, status = _resolve(path, kernel, follow=follow)
    try:
        _replace(dir_fd, name, data, status, mode, sync=sync, kernel=kernel)
    except OSError as error:
        if error.filename == path:
            raise
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        kernel.close(dir_fd)


def _resolve(path: str, kernel: Kernel, *, follow: bool) -> tuple[int, str, stat_result | None]:
    """Follow links at `path`; return the file's directory (a descriptor), name and status."""
    current = path
    for _ in range(LINK_LIMIT + 1):
        folder, name = split(current)
        if name in ("", ".", ".."):
            raise UnsafePathError(f"{path} is a directory", hint="name a file")
        dir_fd = kernel.open(folder, posix.O_PATH | posix.O_DIRECTORY)
        try:
            status = lstat_or_none(name, dir_fd)
            kind = constants.S_IFREG if status is None else status.st_mode & constants.S_IFMT
            if not follow and kind == constants.S_IFLNK:
                status, kind = None, constants.S_IFREG
            if status is not None:
                _check_owner(path, status, posix.fstat(dir_fd))
            if kind == constants.S_IFREG:
                result_fd, dir_fd = dir_fd, -1
                return result_fd, name, status
            if kind != constants.S_IFLNK:
                raise UnsafePathError(f"{path} is not a regular file", hint="name a file")
            target = posix.readlink(name, dir_fd=dir_fd)
        finally:
            if dir_fd >= 0:
                kernel.close(dir_fd)
        current = target if target.startswith("/") else f"{folder}/{target}"
    raise UnsafePathError(f"{path} leads through more than {LINK_LIMIT} symbolic links")


def _check_owner(path: str, status: stat_result, folder: stat_result) -> None:
    """Refuse a file of another user in a world-writable directory such as /tmp."""
    shared = constants.S_ISVTX | 0o002
    if folder.st_mode & shared != shared:
        return
    if status.st_uid not in (posix.geteuid(), folder.st_uid):
        raise UnsafePathError(
            f"{path} belongs to uid {status.st_uid} in a world-writable directory",
            hint="remove it or write to another directory",
        )


def _replace(
    dir_fd: int,
    name: str,
    data: bytes,
    status: stat_result | None,
    mode: int | None,
    *,
    sync: bool,
    kernel: Kernel,
) -> None:
    if mode is None and status is not None:
        mode = status.st_mode & 0o7777
    owner = None if status is None else (status.st_uid, status.st_gid)
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
    """Write a new file and return its unpredictable name; an OSError leaves no file."""
    name = temporary_name()
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW
    fd = kernel.open(name, flags, 0o666 if mode is None else 0o600, dir_fd=dir_fd)
    try:
        try:
            status = posix.fstat(fd)
            if owner is not None and owner != (status.st_uid, status.st_gid):
                kernel.fchown(fd, *owner)
            unwritten = data
            while unwritten:
                unwritten = unwritten[kernel.write(fd, unwritten) :]
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
    """Return a unique and unpredictable file name."""
    return TEMPORARY_PREFIX + posix.urandom(8).hex()


def discard(name: str, dir_fd: int, kernel: Kernel) -> None:
    """Remove a temporary file; ignore errors, because callers report an earlier one."""
    try:
        kernel.unlink(name, dir_fd=dir_fd)
    except OSError:
        pass


def read_bytes(
    path: str, limit: int = 64 * MIB, *, check: Callable[[str, stat_result], None] | None = None
) -> bytes:
    """Return the content of a regular file of the host, procfs and sysfs included.

    `check` can refuse the opened file because of its status. DocumentError if the file is larger
    than `limit` or not regular (a FIFO does not block), or the path is not valid; OSError if the
    file is absent or not readable.
    """
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY)
    except ValueError as error:  # from JSON, whose strings need not be valid paths
        raise DocumentError(f"{path!r} is not a path: it may contain a NUL") from error
    try:
        status = posix.fstat(fd)
        if status.st_mode & constants.S_IFMT != constants.S_IFREG:
            raise DocumentError(f"{path} is not a regular file")
        if check is not None:
            check(path, status)
        data = read_all(fd, status.st_size, limit)
    finally:
        posix.close(fd)
    if data is None:
        raise DocumentError(f"{path} is larger than {limit} bytes")
    return data


def has_every_id(process: int | str = "self", proc: str = "/proc") -> bool:
    """Report whether a process's user namespace has every id (the initial one has); OSError."""
    return read_bytes(f"{proc}/{process}/uid_map", 1 << 16).split() == EVERY_ID


def open_log(path: str) -> int:
    """Open a log of the host for appending, create it if missing; return its descriptor.

    Other users can possibly replace a log, so links are not followed, and a FIFO does not block.
    DocumentError if the path is a link, or not a regular file; OSError if it cannot be written.
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
        raise DocumentError(f"{path} is not a regular file, as a log must be")
    return fd


def read_all(fd: int, size: int, limit: int) -> bytes | None:
    """Read a file of `size` bytes, as stat(2) reports it; None if it has more than `limit`."""
    if size > limit:
        return None
    # One more byte than `size` detects the end, or growth. A procfs file has size 0 and must be
    # read by one call: a sysctl returns nothing at other offsets.
    data = posix.read(fd, max(size, min(64 << 10, limit)) + 1)
    if len(data) == size and size:
        return data
    chunks = [data]
    total = len(data)
    while chunks[-1] and total <= limit:
        chunks.append(posix.read(fd, min(64 << 10, limit + 1 - total)))
        total += len(chunks[-1])
    return None if total > limit else b"".join(chunks)


def signature(path: str) -> Signature | None:
    """Return (device, inode, size, mtime in ns, uid) of a path, links followed; None if absent.

    OSError if stat(2) failed, for instance by EACCES.
    """
    try:
        status = posix.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_uid


def lstat_or_none(name: str, dir_fd: int | None) -> stat_result | None:
    """Return the status of a name, links not followed; None if absent."""
    try:
        return posix.lstat(name, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError):
        return None


def split(path: str) -> tuple[str, str]:
    """Return directory and name of a path; "." and "/" instead of an empty directory."""
    folder, slash, name = path.rpartition("/")
    if not slash:
        return ".", name
    return folder.rstrip("/") or "/", name


def try_lock(path: str, dir_fd: int | None = None, *, create: bool = True) -> int:
    """Lock a lock file (flock) and return its descriptor; -1 if another process has the lock.

    -1 also if the file was removed or replaced meanwhile: the next call opens the new one. OSError
    if the file cannot be opened, is not a regular file with one name, or is missing and `create`
    is False.

    Args:
        path: the lock file; a symbolic link is refused.
        dir_fd: the file's folder, where that must not be looked up again; `path` then only serves
            messages and gives the name.
        create: make a missing file.
    """
    name = path if dir_fd is None else split(path)[1]
    flags = posix.O_RDWR | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY
    try:
        fd = posix.open(name, flags | (posix.O_CREAT if create else 0), 0o600, dir_fd=dir_fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    try:
        status = posix.fstat(fd)
        if status.st_mode & constants.S_IFMT != constants.S_IFREG or status.st_nlink > 1:
            raise OSError(EINVAL, "not a regular file with one name", path)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        current = lstat_or_none(name, dir_fd)
        if current and (status.st_dev, status.st_ino) == (current.st_dev, current.st_ino):
            locked, fd = fd, -1
            return locked
    except BlockingIOError:
        pass
    finally:
        if fd >= 0:
            posix.close(fd)
    return -1


class Lock:
    """An exclusive lock (flock) on a lock file, which is never removed.

    Args:
        path, dir_fd: as in `try_lock`.

    Raises (on entering):
        HostError: another process held the lock until the timeout.
        OSError: as `try_lock`.
    """

    __slots__ = ("dir_fd", "fd", "path", "timeout_s")

    def __init__(self, path: str, timeout_s: float, dir_fd: int | None = None) -> None:
        self.path = path
        self.timeout_s = timeout_s
        self.dir_fd = dir_fd
        self.fd = -1

    def __enter__(self) -> Self:
        import time  # built in; few callers lock

        left_s = self.timeout_s  # by pauses: who waits for a processor may wait longer
        while (fd := try_lock(self.path, self.dir_fd)) < 0:
            if left_s <= 0:
                raise HostError(
                    f"{self.path} has been locked by another process for {self.timeout_s:g} s",
                    hint="see who holds it: fuser -v " + self.path[-60:],
                )
            time.sleep(PAUSE_S)
            left_s -= PAUSE_S
        self.fd = fd
        return self

    def __exit__(self, *_: object) -> None:
        fd, self.fd = self.fd, -1
        posix.close(fd)
