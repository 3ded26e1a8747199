# SPDX-License-Identifier: Apache-2.0
"""Access to files in the root of a container or driver; no path leaves the root.

An attacker may control the container's root, and change it at any time. Contract:

- A path is walked from one descriptor; each component is opened relative to the one before with
  O_PATH and O_NOFOLLOW. The kernel never follows a link, so no link, not even a magic one of
  /proc, leads out. The text of a link is put before the rest of the path; an absolute text
  continues at the root; `..` goes back to the directory walked before, but not above the root.
  Links, depth and steps have limits.
- A file is opened for reading by its O_PATH descriptor, not by name, and only if that is a regular
  file: no FIFO blocks, no device is touched.
- The last component is never written through a link; rename replaces files and links.
- Mounts below the root belong to the container and are entered, as with RESOLVE_IN_ROOT. Nothing
  is written after a link led from one mount into another: links of an image must not select files
  in a volume.
- A regular file of size 0 counts as empty, even in procfs.

Errors: UnsafePathError if the content of the root is the cause, else OSError with the path inside
the root. Reading needs the host's /proc, so it is done before this process enters a container's
mount namespace; a false /proc is detected.
"""

from __future__ import annotations

import posix

from nvct.errors import HostError, UnsafePathError
from nvct.linux import constants
from nvct.linux.files import discard, read_all, temporary_name, write_temporary
from nvct.linux.kernel import KERNEL
from nvct.linux.walk import (
    ABSENT,
    DIRECTORY,
    EXISTING,
    FOLLOW,
    NOFOLLOW,
    Location,
    is_name,
    link_text,
    names_in,
    walk,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import stat_result

    from typing_extensions import Self

    from nvct.linux.kernel import Kernel
    from nvct.linux.walk import Budget

READ_LIMIT = 64 << 20
LIST_LIMIT = 1 << 16


class Root:
    """The root directory of a container, or of another tree that paths must not leave.

    A walk costs 7 us per component. To create or replace many files of one directory, use
    `Root(root.dir_fd(path))`; links in that directory then cannot lead out of it.
    """

    __slots__ = ("budget", "fd", "label")

    def __init__(self, fd: int, label: str = "the container") -> None:
        self.fd = fd  # an O_PATH or readable descriptor of the directory, which the object closes
        self.label = label
        # limits the steps of all walks together; None for no limit
        self.budget: Budget | None = None

    @classmethod
    def open(cls, path: str) -> Self:
        """Open a directory of the host, links followed; HostError if it cannot be opened."""
        try:
            return cls(posix.open(path, posix.O_PATH | posix.O_DIRECTORY), path)
        except OSError as error:
            raise HostError(f"root folder {path} cannot be opened: {error.strerror}") from error
        except ValueError as error:  # from JSON, whose strings need not be valid paths
            raise HostError(f"root folder {path!r} is not a path: it may contain a NUL") from error

    @classmethod
    def of_container(cls, path: str, budget: Budget | None = None, host: str = "/") -> Self:
        """Open a container's root; UnsafePathError if it is the host's root, else as `open`."""
        root = cls.open(path)
        root.label = "the container"  # a bundle's path is long and does not help users
        root.budget = budget
        status, host_status = posix.fstat(root.fd), posix.stat(host)
        if (status.st_dev, status.st_ino) == (host_status.st_dev, host_status.st_ino):
            root.close()
            raise UnsafePathError(
                "the container's root is the host's", hint="a hook would change the host"
            )
        return root

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            posix.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _walk(
        self,
        path: str,
        last: int,
        create: int | None = None,
        kernel: Kernel = KERNEL,
        *,
        write: bool = False,
    ) -> Location:
        may_write = write or create is not None
        location = Location(self.fd, path, self.label, write=may_write, budget=self.budget)
        return walk(location, last, create, kernel)

    # Reading.

    def lstat(self, path: str) -> stat_result | None:
        """Return the status of a path, without following a last link; None if absent."""
        try:
            with self._walk(path, NOFOLLOW) as location:
                return location.status()
        except ABSENT:
            return None

    def stat(self, path: str) -> stat_result | None:
        """Return the status of a path, links followed; None if absent."""
        return self.find(path)[1]

    def is_file(self, path: str) -> bool:
        """Report whether a path leads to a regular file."""
        status = self.stat(path)
        return status is not None and status.st_mode & constants.S_IFMT == constants.S_IFREG

    def resolve(self, path: str) -> str | None:
        """Return the path in the container without links, `.` and `..`; None if absent.

        Use it for messages and comparisons only.
        """
        return self.find(path)[0]

    def find(self, path: str) -> tuple[str | None, stat_result | None]:
        """Return the results of `resolve` and `stat`, from one walk."""
        try:
            with self._walk(path, FOLLOW) as location:
                status = location.status()
                return (None if status is None else location.shown()), status
        except ABSENT:
            return None, None

    def real(self, path: str) -> str:
        """Return a path without links; its last components need not exist.

        UnsafePathError if the path leads through a file, a dangling link, or too many links.
        """
        try:
            with self._walk(path, EXISTING) as location:
                return location.shown()
        except ABSENT as error:
            raise UnsafePathError(f"{path} leads through a file, or a link to nowhere") from error

    def readlink(self, path: str) -> str | None:
        """Return the text of a symbolic link; None if the path is not one."""
        try:
            with self._walk(path, NOFOLLOW) as location:
                return link_text(location.leaf, location.dir_fd) if location.leaf else None
        except ABSENT:
            return None

    def listdir(self, path: str, limit: int = LIST_LIMIT) -> list[str] | None:
        """Return a directory's sorted names, None if absent; UnsafePathError above `limit`."""
        try:
            with self._walk(path, DIRECTORY) as location:
                names = names_in(location.dir_fd, limit)
                if names is None:
                    raise location.unsafe(f"has more than {limit} entries")
        except ABSENT:
            return None
        names.sort()
        return names

    # Descriptors.

    def dir_fd(
        self, path: str, *, create: bool = False, mode: int = 0o755, kernel: Kernel = KERNEL
    ) -> int:
        """Return an O_PATH descriptor of a directory to write to; the caller closes it.

        With `create`, missing directories are created with `mode`, independent of the umask.
        FileNotFoundError if the path does not exist; NotADirectoryError if the path is not a
        directory.
        """
        with self._walk(path, DIRECTORY, mode if create else None, kernel, write=True) as location:
            return location.take()

    def path_fd(self, path: str, *, follow: bool = True, write: bool = False) -> int | None:
        """Return an O_PATH descriptor of any file, for example to mount on; None if absent.

        Opening it has no side effect, not even for a device. The file can be a link if `follow` is
        False, or if another process changes the path.
        """
        flags = posix.O_PATH | posix.O_NOFOLLOW
        try:
            if not (follow or write) and is_name(path):
                return posix.open(path, flags, dir_fd=self.fd)
            with self._walk(path, FOLLOW if follow else NOFOLLOW, write=write) as location:
                if not location.leaf:
                    return location.take()
                return posix.open(location.leaf, flags, dir_fd=location.dir_fd)
        except ABSENT:
            return None

    def file_fd(self, path: str, *, follow: bool = True) -> int | None:
        """Open a regular file for reading; None if absent or empty; the caller closes it.

        If `follow` is False, a link counts as not regular. UnsafePathError if the path is not a
        regular file.
        """
        fd = self.path_fd(path, follow=follow)
        if fd is None:
            return None
        try:
            return self._reopen(fd, path) if self._size(fd, path) else None
        finally:
            posix.close(fd)

    def _size(self, fd: int, path: str) -> int:
        status = posix.fstat(fd)
        if status.st_mode & constants.S_IFMT != constants.S_IFREG:
            raise UnsafePathError(f"{path} in {self.label} is not a regular file")
        return status.st_size

    def read_file(self, path: str, limit: int = READ_LIMIT) -> bytes | None:
        """Return the content of a regular file; None if absent.

        UnsafePathError if it is larger than `limit`, or not a regular file.
        """
        path_fd = self.path_fd(path)
        if path_fd is None:
            return None
        fd = -1
        try:
            if not self._size(path_fd, path):
                return b""
            fd = self._reopen(path_fd, path)
            data = read_all(fd, posix.fstat(fd).st_size, limit)
        finally:
            posix.close(path_fd)
            if fd >= 0:
                posix.close(fd)
        if data is None:
            raise UnsafePathError(f"{path} in {self.label} is larger than {limit} bytes")
        return data

    # Changing.

    def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, kernel: Kernel = KERNEL
    ) -> None:
        """Create or replace a file by rename; missing parent directories are created.

        An existing regular file keeps its permission bits, but not its set-id bits.
        UnsafePathError if the path is a directory.
        """
        with self._walk(path, NOFOLLOW, 0o755, kernel) as location:
            status = _replaceable(location)
            if status is not None and status.st_mode & constants.S_IFMT == constants.S_IFREG:
                mode = status.st_mode & 0o777
            _put(write_temporary(location.dir_fd, data, mode, kernel=kernel), location, kernel)

    def symlink(self, target: str, path: str, *, kernel: Kernel = KERNEL) -> None:
        """Create or replace a link with the text `target`, unless it exists.

        Missing parent directories are created. The text is not resolved: only the container
        follows the link. UnsafePathError if the path is a directory, or the text is not valid.
        """
        if not target or "\0" in target:
            raise UnsafePathError(f"{path} in {self.label} cannot be a link to {target!r}")
        with self._walk(path, NOFOLLOW, 0o755, kernel) as location:
            _replaceable(location)
            if link_text(location.leaf, location.dir_fd) != target:
                temporary = temporary_name()
                kernel.symlink(target, temporary, dir_fd=location.dir_fd)
                _put(temporary, location, kernel)

    def symlinks(self, links: Iterable[tuple[str, str]], *, kernel: Kernel = KERNEL) -> None:
        """Create links, (text, path) each, as `symlink` does, with one walk per directory."""
        folder: str | None = None
        fd = -1
        try:
            for target, path in links:
                parent, _, name = path.rpartition("/")
                if parent != folder:
                    if fd >= 0:
                        posix.close(fd)
                        fd = -1
                    fd = self.dir_fd(parent or "/", create=True, kernel=kernel)
                    folder = parent
                if not _make_link(target, name, fd, kernel):
                    self.symlink(target, path, kernel=kernel)
        finally:
            if fd >= 0:
                posix.close(fd)

    def unlink(self, path: str, *, kernel: Kernel = KERNEL) -> None:
        """Remove a file or link, if it exists; UnsafePathError if the path is a directory."""
        try:
            with self._walk(path, NOFOLLOW, write=True) as location:
                if _replaceable(location) is not None:
                    kernel.unlink(location.leaf, dir_fd=location.dir_fd)
        except ABSENT:
            return

    def chmod(self, path: str, mode: int, *, kernel: Kernel = KERNEL) -> bool:
        """Set the mode of a regular file or directory, links followed; False if absent.

        UnsafePathError if the path is neither.
        """
        fd = self.path_fd(path, write=True)
        if fd is None:
            return False
        try:
            kind = posix.fstat(fd).st_mode & constants.S_IFMT
            if kind not in (constants.S_IFREG, constants.S_IFDIR):
                raise UnsafePathError(f"{path} in {self.label} is neither a file nor a directory")
            file_fd = self._reopen(fd, path)
            try:
                kernel.fchmod(file_fd, mode)
            finally:
                kernel.close(file_fd)
        finally:
            posix.close(fd)
        return True

    def _reopen(self, fd: int, path: str) -> int:
        """Open the file of an O_PATH descriptor for reading, and verify that it is the same."""
        try:
            file_fd = KERNEL.reopen(fd, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY)
        except FileNotFoundError:
            raise HostError("/proc is not mounted", hint="mount -t proc proc /proc") from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        status, file_status = posix.fstat(fd), posix.fstat(file_fd)
        if (status.st_dev, status.st_ino) != (file_status.st_dev, file_status.st_ino):
            posix.close(file_fd)
            raise UnsafePathError(f"/proc leads to another file than {path} in {self.label}")
        return file_fd


def _replaceable(location: Location) -> stat_result | None:
    """Return the status of the last component, None if absent; refuse a directory."""
    status = location.status()
    if status is not None and status.st_mode & constants.S_IFMT == constants.S_IFDIR:
        raise location.unsafe("is a directory")
    return status


def _make_link(target: str, name: str, dir_fd: int, kernel: Kernel) -> bool:
    """Try to make a link without any checks; return whether that succeeded."""
    if not target or "\0" in target + name or name in ("", ".", ".."):
        return False
    try:
        kernel.symlink(target, name, dir_fd=dir_fd)
    except OSError:  # mostly EEXIST; the slow path reports errors
        return False
    return True


def _put(temporary: str, location: Location, kernel: Kernel) -> None:
    """Rename a temporary file to the last component; remove it on failure."""
    fd = location.dir_fd
    try:
        kernel.rename(temporary, location.leaf, source_dir_fd=fd, target_dir_fd=fd)
    except BaseException as error:
        discard(temporary, fd, kernel)
        if isinstance(error, IsADirectoryError):
            raise location.unsafe("is a directory") from None
        raise
