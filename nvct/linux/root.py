# SPDX-License-Identifier: Apache-2.0
"""Paths inside a container's root, or a driver's, without ever leaving it.

The container's root is an attacker's, and may change while it is looked at. Contract:

- Every path is walked from one descriptor, component by component, each opened relative to the
  one before with O_PATH and O_NOFOLLOW: the kernel never follows a link for us, so no link, magic
  ones of /proc included, leads out. A link's text is put before what is left of the path; an
  absolute one starts again at the root, `..` goes back to a directory that was walked through,
  and stops at the root. Links, depth and steps have limits.
- Nothing is opened for reading before its descriptor is known to be a regular file's, and then it
  is that descriptor which is opened again, no name: no FIFO blocks us, no device is touched.
- Nothing is written through a link at the last component; files and links are replaced by rename.
- Mounts below the root belong to the container and are walked into, as RESOLVE_IN_ROOT does; but
  nothing is written where a link led from one mount into another: an image's links do not say
  what we do to a volume.
- A regular file of size 0 has no content, whatever procfs would make up for whoever reads it.

Errors: UnsafePathError where the content is to blame, else OSError with the path as the root's
inside sees it. Reading needs the host's /proc, so it is done before entering a container's mount
namespace; a /proc that isn't genuine is noticed.
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
    Place,
    is_name,
    link_text,
    names_in,
    walk,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import stat_result
    from types import TracebackType

    from typing_extensions import Self

    from nvct.linux.kernel import Kernel
    from nvct.linux.walk import Budget

READ_LIMIT = 64 << 20
LIST_LIMIT = 1 << 16


class Root:
    """A container's root directory, or any other tree that must not be left.

    A walk costs 7 us a component. For many files of one directory take `Root(root.dir_fd(path))`;
    links in it end at that directory, so it is for making and replacing, not for following.

    Args:
        fd: an O_PATH or readable descriptor of the directory; the object closes it.
        label: what error messages call this root.

    Attributes:
        budget: the steps that all walks may take together, None for any number.
    """

    __slots__ = ("budget", "fd", "label")

    def __init__(self, fd: int, label: str = "the container") -> None:
        self.fd = fd
        self.label = label
        self.budget: Budget | None = None

    @classmethod
    def open(cls, path: str) -> Self:
        """Open a directory of the host; links in `path` itself are the host's and are followed.

        Raises:
            HostError: there is no such directory.
        """
        try:
            return cls(posix.open(path, posix.O_PATH | posix.O_DIRECTORY), path)
        except OSError as error:
            raise HostError(f"root folder {path} cannot be opened: {error.strerror}") from error
        except ValueError as error:  # it comes out of JSON, which can say more than a path can
            raise HostError(f"root folder {path!r} is no path: it holds a NUL, say") from error

    def close(self) -> None:
        """Close the descriptor; a second time does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            posix.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _walk(
        self,
        path: str,
        last: int,
        create: int | None = None,
        kernel: Kernel = KERNEL,
        *,
        write: bool = False,
    ) -> Place:
        may_write = write or create is not None
        place = Place(self.fd, path, self.label, write=may_write, budget=self.budget)
        return walk(place, last, create, kernel)

    # Looking.

    def lstat(self, path: str) -> stat_result | None:
        """Return the status of a path, the last link not followed; None if absent."""
        try:
            with self._walk(path, NOFOLLOW) as place:
                return place.status()
        except ABSENT:
            return None

    def stat(self, path: str) -> stat_result | None:
        """Return the status of what a path leads to inside the root; None if absent."""
        try:
            with self._walk(path, FOLLOW) as place:
                return place.status()
        except ABSENT:
            return None

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a regular file."""
        found = self.stat(path)
        return found is not None and found.st_mode & constants.S_IFMT == constants.S_IFREG

    def resolve(self, path: str) -> str | None:
        """Return the path without links, `.` or `..`, as the container sees it; None if absent.

        It is for showing and comparing.
        """
        try:
            with self._walk(path, FOLLOW) as place:
                return None if place.status() is None else place.shown()
        except ABSENT:
            return None

    def real(self, path: str) -> str:
        """Return a path without links, as far as it exists.

        Raises:
            UnsafePathError: it leads through a file, a link to nowhere, or too many links.
        """
        try:
            with self._walk(path, EXISTING) as place:
                return place.shown()
        except ABSENT as error:
            raise UnsafePathError(f"{path} leads through a file, or a link to nowhere") from error

    def readlink(self, path: str) -> str | None:
        """Return the text of a symbolic link; None if there is no such link."""
        try:
            with self._walk(path, NOFOLLOW) as place:
                return link_text(place.leaf, place.dir_fd) if place.leaf else None
        except ABSENT:
            return None

    def listdir(self, path: str, limit: int = LIST_LIMIT) -> list[str] | None:
        """Return the sorted names in a directory; None if there is no such directory.

        Raises:
            UnsafePathError: more than `limit` names.
        """
        try:
            with self._walk(path, DIRECTORY) as place:
                names = names_in(place.dir_fd, limit)
                if names is None:
                    raise place.unsafe(f"has more than {limit} entries")
        except ABSENT:
            return None
        names.sort()
        return names

    # Descriptors.

    def dir_fd(
        self, path: str, *, create: bool = False, mode: int = 0o755, kernel: Kernel = KERNEL
    ) -> int:
        """Return an O_PATH descriptor of a directory, to write to; the caller closes it.

        With `create`, missing directories are made with `mode`, whatever the umask.

        Raises:
            FileNotFoundError: absent.
            NotADirectoryError: something else is there.
        """
        with self._walk(path, DIRECTORY, mode if create else None, kernel, write=True) as place:
            return place.take()

    def path_fd(self, path: str, *, follow: bool = True, write: bool = False) -> int | None:
        """Return an O_PATH descriptor of whatever is there, to mount on, say; None if absent.

        Opening one has no side effect, not even on a device. With `follow` False, and where
        somebody races us, it may be a link's.
        """
        flags = posix.O_PATH | posix.O_NOFOLLOW
        try:
            if not (follow or write) and is_name(path):
                return posix.open(path, flags, dir_fd=self.fd)
            with self._walk(path, FOLLOW if follow else NOFOLLOW, write=write) as place:
                if not place.leaf:
                    return place.take()
                return posix.open(place.leaf, flags, dir_fd=place.dir_fd)
        except ABSENT:
            return None

    def file_fd(self, path: str, *, follow: bool = True) -> int | None:
        """Open a regular file for reading; None if absent or empty; the caller closes it.

        With `follow` False a link is no regular file.

        Raises:
            UnsafePathError: something else than a regular file is there.
        """
        fd = self.path_fd(path, follow=follow)
        if fd is None:
            return None
        try:
            return self._reopen(fd, path) if self._size(fd, path) else None
        finally:
            posix.close(fd)

    def _size(self, fd: int, path: str) -> int:
        found = posix.fstat(fd)
        if found.st_mode & constants.S_IFMT != constants.S_IFREG:
            raise UnsafePathError(f"{path} in {self.label} is no regular file")
        return found.st_size

    def read_file(self, path: str, limit: int = READ_LIMIT) -> bytes | None:
        """Return the content of a regular file; None if absent.

        Raises:
            UnsafePathError: larger than `limit`, or no regular file.
        """
        place = self.path_fd(path)
        if place is None:
            return None
        fd = -1
        try:
            if not self._size(place, path):
                return b""
            fd = self._reopen(place, path)
            data = read_all(fd, posix.fstat(fd).st_size, limit)
        finally:
            posix.close(place)
            if fd >= 0:
                posix.close(fd)
        if data is None:
            raise UnsafePathError(f"{path} in {self.label} is larger than {limit} bytes")
        return data

    # Changing.

    def write_file(
        self, path: str, data: bytes, *, mode: int = 0o644, kernel: Kernel = KERNEL
    ) -> None:
        """Put a file in place of a file or link by rename; parent directories are made.

        An existing regular file's permission bits are kept, set-id bits are not.

        Raises:
            UnsafePathError: a directory is there.
        """
        with self._walk(path, NOFOLLOW, 0o755, kernel) as place:
            found = _replaceable(place)
            if found is not None and found.st_mode & constants.S_IFMT == constants.S_IFREG:
                mode = found.st_mode & 0o777
            _put(write_temporary(place.dir_fd, data, mode, kernel=kernel), place, kernel)

    def symlink(self, target: str, path: str, *, kernel: Kernel = KERNEL) -> None:
        """Make a link with the text `target` in place of a file or link; none if it is there.

        Parent directories are made. The text is not looked at: it is the container that follows.

        Raises:
            UnsafePathError: a directory is there, or the text cannot be a link's.
        """
        if not target or "\0" in target:
            raise UnsafePathError(f"{path} in {self.label} cannot be a link to {target!r}")
        with self._walk(path, NOFOLLOW, 0o755, kernel) as place:
            _replaceable(place)
            if link_text(place.leaf, place.dir_fd) != target:
                temporary = temporary_name()
                kernel.symlink(target, temporary, dir_fd=place.dir_fd)
                _put(temporary, place, kernel)

    def symlinks(self, links: Iterable[tuple[str, str]], *, kernel: Kernel = KERNEL) -> None:
        """Make links, (text, path) each, as `symlink` does, with one walk for neighbors.

        Raises:
            UnsafePathError: as `symlink`.
        """
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
        """Remove a file or link; nothing happens if there is none.

        Raises:
            UnsafePathError: a directory is there.
        """
        try:
            with self._walk(path, NOFOLLOW, write=True) as place:
                if _replaceable(place) is not None:
                    kernel.unlink(place.leaf, dir_fd=place.dir_fd)
        except ABSENT:
            return

    def chmod(self, path: str, mode: int, *, kernel: Kernel = KERNEL) -> bool:
        """Set the mode of a regular file or directory, links followed; False if absent.

        Raises:
            UnsafePathError: something else is there.
        """
        fd = self.path_fd(path, write=True)
        if fd is None:
            return False
        try:
            kind = posix.fstat(fd).st_mode & constants.S_IFMT
            if kind not in (constants.S_IFREG, constants.S_IFDIR):
                raise UnsafePathError(f"{path} in {self.label} is no file or directory")
            again = self._reopen(fd, path)
            try:
                kernel.fchmod(again, mode)
            finally:
                kernel.close(again)
        finally:
            posix.close(fd)
        return True

    def _reopen(self, fd: int, path: str) -> int:
        """Open for reading what an O_PATH descriptor stands for, and be sure it is the same."""
        try:
            again = KERNEL.reopen(fd, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY)
        except FileNotFoundError:
            raise HostError("/proc is not mounted", hint="mount -t proc proc /proc") from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        was, now = posix.fstat(fd), posix.fstat(again)
        if (was.st_dev, was.st_ino) != (now.st_dev, now.st_ino):
            posix.close(again)
            raise UnsafePathError(f"{path} in {self.label} is another file through /proc")
        return again


def _replaceable(place: Place) -> stat_result | None:
    """Return what is at a place, None if nothing is; a directory is refused."""
    found = place.status()
    if found is not None and found.st_mode & constants.S_IFMT == constants.S_IFDIR:
        raise place.unsafe("is a directory")
    return found


def _make_link(target: str, name: str, dir_fd: int, kernel: Kernel) -> bool:
    """Make a link if that takes nothing but asking for it; tell whether it did."""
    if not target or "\0" in target + name or name in ("", ".", ".."):
        return False
    try:
        kernel.symlink(target, name, dir_fd=dir_fd)
    except OSError:  # EEXIST mostly; the careful way says what is wrong, if anything is
        return False
    return True


def _put(temporary: str, place: Place, kernel: Kernel) -> None:
    """Give a temporary file its name; it goes away if that fails."""
    fd = place.dir_fd
    try:
        kernel.rename(temporary, place.leaf, source_dir_fd=fd, target_dir_fd=fd)
    except BaseException as error:
        discard(temporary, fd, kernel)
        if isinstance(error, IsADirectoryError):
            raise place.unsafe("is a directory") from None
        raise
