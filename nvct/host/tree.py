# SPDX-License-Identifier: Apache-2.0
"""The file tree that a driver's files are looked for in.

Contract: a link is resolved as a process inside the tree would: one that is absolute starts again
at the driver root, none leaves it. nvidia-container-toolkit v1.20 resolves them against the host.
"""

from __future__ import annotations

import posix
from typing import NamedTuple

from nvct.errors import DocumentError, LdCacheError, NvctError, UnsafePathError
from nvct.host.roots import join
from nvct.linux import elf, ldcache
from nvct.linux.root import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

S_IFMT, S_IFREG = 0o170000, 0o100000
NAME_LIMIT = 1 << 17


class Found(NamedTuple):
    """A regular file: as it was looked for, and where it really is, both inside the tree."""

    path: str
    real: str
    mode: int


class Tree:
    """A directory of the host that is read as a root of its own."""

    def __init__(self, host_path: str) -> None:
        """Open the directory.

        Raises:
            HostError: there is no such directory.
        """
        self.host_root = host_path
        self.root = Root.open(host_path)

    def __enter__(self) -> Self:
        """Return the tree, open."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.root.close()

    def host_path(self, path: str) -> str:
        """Return the host's path of a path inside."""
        return join(self.host_root, path)

    def find(self, path: str) -> Found | None:
        """Return the regular file that a path leads to, None where there is none."""
        try:
            real = self.root.resolve(path)
            status = None if real is None else self.root.lstat(real)
        except (OSError, NvctError):
            return None
        if real is None or status is None or status.st_mode & S_IFMT != S_IFREG:
            return None
        return Found(path, real, status.st_mode & 0o7777)

    def directory(self, path: str) -> str | None:
        """Return the real path of a directory, None where there is none."""
        try:
            real = self.root.resolve(path)
            status = None if real is None else self.root.lstat(real)
        except (OSError, NvctError):
            return None
        return real if status is not None and status.st_mode & S_IFMT == 0o040000 else None

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory, [] where there is none or it can't be read."""
        try:
            return self.root.listdir(path, NAME_LIMIT) or []
        except (OSError, UnsafePathError):
            return []

    def is_link(self, path: str) -> bool:
        """Whether a symbolic link stands there, dangling or not."""
        try:
            return self.root.readlink(path) is not None
        except (OSError, UnsafePathError):
            return False

    def read_elf(self, path: str) -> elf.Elf:
        """Return the ELF headers of a file.

        Raises:
            ElfError: it is no ELF file, or a damaged one.
            OSError: it cannot be read.
            UnsafePathError: it is no regular file.
        """
        fd = self.root.file_fd(path)
        if fd is None:
            raise FileNotFoundError(2, "No such file or directory", path)
        try:
            return elf.read(fd)
        finally:
            posix.close(fd)

    def cached_libraries(self) -> list[tuple[str, str]]:
        """Return (name, path) of the tree's ld.so.cache; [] where there is none.

        Raises:
            LdCacheError: it is damaged.
        """
        try:
            data = self.root.read_file("/etc/ld.so.cache")
        except (OSError, UnsafePathError) as error:
            raise LdCacheError(f"etc/ld.so.cache of {self.host_root}: {error}") from error
        if data is None:
            return []
        try:
            return [(entry[0], entry[1]) for entry in ldcache.parse(data).entries]
        except DocumentError as error:
            raise LdCacheError(f"etc/ld.so.cache of {self.host_root}: {error.message}") from error
