# SPDX-License-Identifier: Apache-2.0
"""The file tree of a driver root.

Contract: a link is resolved as in a chroot: an absolute link starts at the driver root, and no
link leaves it. nvidia-container-toolkit v1.20 resolves links against the host. A Tree reads a
directory, the headers of an ELF file and the linker's cache once.
"""

from __future__ import annotations

import posix
from typing import NamedTuple

from nvct.errors import (
    DocumentError,
    ElfError,
    HostError,
    LdCacheError,
    NvctError,
    UnsafePathError,
)
from nvct.host.model import Findings
from nvct.host.roots import join
from nvct.linux import elf, ldcache
from nvct.linux.ldcache import Cache
from nvct.linux.root import Root

S_IFMT, S_IFREG, S_IFDIR, S_IFLNK = 0o170000, 0o100000, 0o040000, 0o120000
NAME_LIMIT = 1 << 17


class TreeFile(NamedTuple):
    """A regular file: the requested path and the real path, both relative to the tree's root."""

    path: str
    real: str
    mode: int


class Headers(NamedTuple):
    """ELF header data of a library: machine as uname prints it, SONAME, DT_NEEDED."""

    machine: str
    soname: str
    needed: tuple[str, ...]


class Tree:
    """A directory of the host that is read as a root; HostError if it cannot be opened."""

    def __init__(self, host_path: str) -> None:
        self.host_root = host_path
        try:
            self.root = Root.open(host_path)
        except HostError as error:
            raise HostError(
                error.message, hint="name the driver's root: --driver-root, or root in config.toml"
            ) from error
        self._names: dict[str, list[str]] = {}
        self._sets: dict[str, frozenset[str]] = {}
        self._folders: dict[str, int] = {}
        self._headers: dict[str, Headers] = {}
        self._cache: Cache | LdCacheError | None = None
        self._has_read_cache = False

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._folders.values():
            if fd >= 0:
                posix.close(fd)
        self._folders.clear()
        self.root.close()

    def host_path(self, path: str) -> str:
        """Return the host path of a path in the tree."""
        return join(self.host_root, path)

    def file(self, path: str) -> TreeFile | None:
        """Return the regular file that a path leads to, None if there is none."""
        real, mode = self._real(path)
        return TreeFile(path, real, mode & 0o7777) if mode & S_IFMT == S_IFREG else None

    def directory(self, path: str) -> str | None:
        """Return the real path of a directory, None if there is none."""
        real, mode = self._real(path)
        return real if mode & S_IFMT == S_IFDIR else None

    def _real(self, path: str) -> tuple[str, int]:
        """Return the real path that a path leads to, and its mode; ("", 0) if absent."""
        try:
            real, status = self.root.find(path)
        except (OSError, NvctError):
            return "", 0
        return (real, status.st_mode) if real is not None and status is not None else ("", 0)

    def file_in(self, directory: str, name: str) -> TreeFile | None:
        """Return what `file` returns, mostly by one stat(2); `directory` must be a real path."""
        path = join(directory, name)
        folder = self._folder(directory)
        try:
            status = posix.stat(name, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        kind = status.st_mode & S_IFMT
        if kind == S_IFREG:
            return TreeFile(path, path, status.st_mode & 0o7777)
        return self.file(path) if kind == S_IFLNK else None

    def _folder(self, directory: str) -> int:
        if directory not in self._folders:
            try:
                fd = self.root.path_fd(directory)
            except (OSError, NvctError):
                fd = None
            self._folders[directory] = -1 if fd is None else fd
        return self._folders[directory]

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory, [] if it is missing or unreadable."""
        if path not in self._names:
            try:
                self._names[path] = self.root.listdir(path, NAME_LIMIT) or []
            except (OSError, UnsafePathError):
                self._names[path] = []
        return self._names[path]

    def name_set(self, path: str) -> frozenset[str]:
        """Return the names in a directory as a set."""
        if path not in self._sets:
            self._sets[path] = frozenset(self.names(path))
        return self._sets[path]

    def is_link(self, path: str) -> bool:
        """Return whether a path is a symbolic link, dangling or not."""
        try:
            return self.root.readlink(path) is not None
        except (OSError, UnsafePathError):
            return False

    def headers(self, path: str) -> Headers:
        """Return the headers of a library at its real path.

        Raises:
            ElfError: the file is not ELF, or is damaged.
            OSError: the file is unreadable.
            UnsafePathError: the path is not a regular file.
        """
        if path not in self._headers:
            self._headers[path] = self._read_headers(path)
        return self._headers[path]

    def _read_headers(self, path: str) -> Headers:
        directory, _, name = path.rpartition("/")
        # O_NOFOLLOW and O_NONBLOCK, because the file can have been replaced since it was found.
        flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY
        try:
            fd = posix.open(name, flags, dir_fd=self._folder(directory or "/"))
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        try:
            if posix.fstat(fd).st_mode & S_IFMT != S_IFREG:
                raise UnsafePathError(f"{path} in {self.host_root} is not a regular file")
            elf_file = elf.Elf(fd)
            return Headers(elf_file.machine, elf_file.soname or "", tuple(elf_file.needed))
        finally:
            posix.close(fd)

    def machine_and_soname(self, path: str, findings: Findings) -> tuple[str, str]:
        """Return machine and SONAME of a library; ("", "") and a warning if unreadable."""
        try:
            machine, soname, _ = self.headers(path)
        except (ElfError, UnsafePathError, OSError) as error:
            findings.warn(f"{self.host_path(path)} has no readable SONAME: {error}")
            return "", ""
        return machine, soname

    def linker_cache(self) -> Cache | None:
        """Return the ld.so.cache, None if absent; LdCacheError if it is damaged or unreadable."""
        if not self._has_read_cache:
            self._has_read_cache = True
            try:
                self._cache = self._read_cache()
            except LdCacheError as error:
                self._cache = error
        if isinstance(self._cache, LdCacheError):
            raise self._cache
        return self._cache

    def _read_cache(self) -> Cache | None:
        cache_path = join(self.host_root, "etc/ld.so.cache")
        try:
            data = self.root.read_file("/etc/ld.so.cache")
        except (OSError, NvctError) as error:
            reason = error.message if isinstance(error, NvctError) else error.strerror
            raise LdCacheError(f"{cache_path} cannot be read: {reason}") from error
        if data is None:
            return None
        try:
            return ldcache.parse(data)
        except DocumentError as error:
            raise LdCacheError(f"{cache_path} cannot be used: {error.message}") from error
