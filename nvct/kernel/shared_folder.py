# SPDX-License-Identifier: Apache-2.0
"""A folder that a process with fewer rights can change, too.

The agent's container has no capability and can change every name in /run/nvct-agent; the installer
and the commands of the host's root use that folder as well. Contract:

- The folder is entered by a descriptor; a link at its path is refused. The folders above it are
  the host's own, and links in their paths are followed.
- A file is one name below that descriptor. It is opened with O_NOFOLLOW and O_NONBLOCK, and used
  only if it is a regular file with one name, of root or of this user, which no other user can
  write.
- A file is written whole under an unpredictable name (O_EXCL) and renamed. An existing file or
  link of the name is replaced and never opened.
- Files are read up to a limit, and readers do not trust their content.

For paths in a container's root see `nvct.linux.root`, which follows links inside that root.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from errno import ELOOP, ENOTDIR, ENXIO

from nvct.errors import UnsafePathError
from nvct.linux import files
from nvct.linux.walk import names_in

FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
OTHERS_MAY_WRITE = 0o022
NAMES = 10_000  # More names are not listed
ABANDONED_S = 60.0


class SharedFolder:
    """An open folder; a context."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    @classmethod
    def open(cls, path: str, *, create: int | None = None) -> SharedFolder:
        """Open a folder; with `create` make a missing one, with that mode, and those above it.

        Raises UnsafePathError if the path is a link or a file; OSError if it is missing, or cannot
        be opened or made.
        """
        path = path.rstrip("/") or path[:1] or "."
        if create is not None:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, create)
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW), path)
        except OSError as error:
            if error.errno in (ELOOP, ENOTDIR) and os.path.lexists(path):
                raise UnsafePathError(f"{path} is not a folder", hint="is it a link?") from error
            raise

    def close(self) -> None:
        """Close the folder; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return f"{self.path}/{name}"

    def names(self) -> list[str]:
        """Return the sorted names in the folder; UnsafePathError for more than NAMES."""
        names = names_in(self.fd, NAMES)
        if names is None:
            raise UnsafePathError(f"{self.path} has more than {NAMES} files")
        return sorted(names)

    def open_file(self, name: str) -> int:
        """Open a file for reading; return its descriptor.

        Raises UnsafePathError if it is not a regular file, has a second name, or others could have
        written it; OSError if it is missing or cannot be opened.
        """
        fd = self._open(name, os.O_RDONLY)
        if why := _not_ours(os.fstat(fd)):
            os.close(fd)
            raise UnsafePathError(f"{self.at(name)} {why}", hint="remove it")
        return fd

    def read(self, name: str, limit: int = files.MIB) -> bytes:
        """Return the content of a file.

        Raises UnsafePathError if it is larger than `limit`, and the errors of `open_file`.
        """
        fd = self.open_file(name)
        try:
            data = files.read_all(fd, os.fstat(fd).st_size, limit)
        finally:
            os.close(fd)
        if data is None:
            raise UnsafePathError(f"{self.at(name)} is larger than {limit} bytes")
        return data

    def write(self, name: str, data: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
        """Write a file in place of one with the name; `sync` waits for the disk.

        Raises OSError, with the path, if the name is a folder's, or writing fails.
        """
        with self._with_path(name):
            self.put(self.write_temporary(data, mode=mode, sync=sync), name)
            if sync:
                os.fsync(self.fd)

    def write_temporary(self, data: bytes, *, mode: int = 0o600, sync: bool = False) -> str:
        """Write a file with an unpredictable name, for `put`; return the name.

        Raises OSError if it cannot be written; nothing is left then.
        """
        return files.write_temporary(self.fd, data, mode, sync=sync)

    def put(self, temporary: str, name: str) -> None:
        """Rename a temporary file to a name; if that fails, remove it and raise OSError."""
        with self._with_path(name):
            try:
                os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=self.fd)
                raise

    def try_lock(self, name: str, *, create: bool = True) -> int:
        """Return the descriptor of a lock file with its lock; -1 if another process has it.

        Raises OSError as `files.try_lock`.
        """
        return files.try_lock(self.at(name), self.fd, create=create)

    def lock(self, name: str, timeout_s: float) -> files.Lock:
        """Return the lock on a lock file; see `files.Lock`."""
        return files.Lock(self.at(name), timeout_s, self.fd)

    def unlink(self, name: str) -> None:
        """Remove a name, if there is one; OSError, with the path, for a folder or a failure."""
        with self._with_path(name), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def remove_abandoned(self) -> None:
        """Remove temporary files that killed writers left, ABANDONED_S ago or earlier.

        Names that cannot be removed stay: others can make folders with such names.
        """
        for name in names_in(self.fd, NAMES) or ():
            if name.startswith(files.TEMPORARY_PREFIX):
                with contextlib.suppress(OSError):
                    status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
                    if time.time() - status.st_mtime > ABANDONED_S:
                        os.unlink(name, dir_fd=self.fd)

    def listen(self, name: str) -> socket.socket:
        """Return this user's listening socket, which replaces a former one; OSError."""
        listener = socket.socket(socket.AF_UNIX)
        temporary = files.temporary_name()
        try:
            os.fchmod(listener.fileno(), 0o600)  # bind(2) makes the file with the socket's mode
            with self._with_path(name):
                listener.bind(f"/proc/self/fd/{self.fd}/{temporary}")
                listener.listen()
                self.put(temporary, name)
        except BaseException:
            listener.close()
            raise
        return listener

    @contextlib.contextmanager
    def socket_path(self, name: str) -> Iterator[str]:
        """Yield a path to connect to a socket of the folder, valid even if its name is replaced.

        Raises UnsafePathError if it is not a socket; OSError if it is missing.
        """
        fd = self._open(name, os.O_PATH)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise UnsafePathError(f"{self.at(name)} is not a socket", hint="remove it")
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)

    def _open(self, name: str, flags: int) -> int:
        with self._with_path(name):
            try:
                return os.open(name, flags | FLAGS, dir_fd=self.fd)
            except OSError as error:
                if error.errno in (ELOOP, ENXIO):
                    raise UnsafePathError(
                        f"{self.at(name)} is not a regular file", hint="remove it"
                    ) from error
                raise

    @contextlib.contextmanager
    def _with_path(self, name: str) -> Iterator[None]:
        """Put the whole path of a name into an OSError."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.at(name)) from error


def _not_ours(status: os.stat_result) -> str:
    """Return why a file is not to be used, "" if it is."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_nlink > 1:
        return "has a second name"
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & OTHERS_MAY_WRITE:
        return f"of uid {status.st_uid} can be written to by others"
    return ""
