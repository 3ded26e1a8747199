# SPDX-License-Identifier: Apache-2.0
"""Changes to a container's root, made as the container's own root user.

Contract: all reading is done before the first change, with the rights of this process. Files and
links of another user than the container's root would belong to nobody in its user namespace, and
the kernel refuses them on an idmapped mount (EOVERFLOW).
"""

from __future__ import annotations

import posix

from nvct.errors import UnsafePathError
from nvct.linux.constants import S_IFMT, S_IFREG
from nvct.linux.files import lstat_or_none
from nvct.linux.walk import link_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root


class Changes:
    """Files and links to write into a root, and files to remove."""

    __slots__ = ("files", "links", "removed", "root", "sealed")

    def __init__(self, root: Root) -> None:
        self.root = root
        # (path, content, mode) each; the content differs from that of the root
        self.files: list[tuple[str, bytes, int]] = []
        self.removed: list[str] = []
        self.links: list[tuple[str, str]] = []
        # (path, mode) of read-only directories, made before their files
        self.sealed: list[tuple[str, int]] = []

    def file(self, path: str, current: bytes | None, content: bytes, mode: int = 0o644) -> bool:
        """Add a file if its content changes; return whether it does."""
        if content != current:
            self.files.append((path, content, mode))
        return content != current

    def link_all(self, links: Iterable[tuple[str, str]]) -> tuple[list[str], bool]:
        """Add links, (target, path) each; return those that can be made, and whether one exists.

        Links replace links of the image and empty files, but no other files: `docker commit`
        leaves an empty file where a runtime had a mount. Each directory is opened once.
        """
        paths: list[str] = []
        exists = False
        folders: dict[str, int | None] = {}
        try:
            for target, path in links:
                parent, _, name = path.rpartition("/")
                try:
                    if parent not in folders:
                        folders[parent] = self.root.path_fd(parent or "/")
                    is_free, text = _link_at(folders[parent], name)
                except (UnsafePathError, OSError):
                    continue
                if is_free:
                    paths.append(path)
                    exists = exists or text == target
                    if text != target:
                        self.links.append((target, path))
        finally:
            for fd in folders.values():
                if fd is not None:
                    posix.close(fd)
        return paths, exists

    def write(self, kernel: Kernel, owner: tuple[int, int] | None = None) -> None:
        """Make all changes as `owner` or this user; UnsafePathError if the root has changed."""
        if not (self.files or self.links or self.removed):
            return
        before = posix.geteuid(), posix.getegid()
        switch = owner is not None and before[0] == 0 and owner != before
        root = self.root
        budget, root.budget = root.budget, None  # the paths are few, and must all be written
        if owner is not None and switch:
            kernel.set_effective_ids(*owner)
        try:
            sealed = [self._open_up(path, mode, kernel) for path, mode in self.sealed]
            try:
                for path, data, mode in self.files:
                    root.write_file(path, data, mode=mode, kernel=kernel)
            finally:
                for path, mode in sealed:
                    root.chmod(path, mode, kernel=kernel)
            for path in self.removed:
                root.unlink(path, kernel=kernel)
            root.symlinks(self.links, kernel=kernel)
        finally:
            root.budget = budget
            if switch:
                kernel.set_effective_ids(*before)

    def _open_up(self, path: str, mode: int, kernel: Kernel) -> tuple[str, int]:
        """Make a directory writable for this process; return its path and final mode.

        The host's root can write to a sealed directory, so it is made with its final mode at once;
        the root of a user namespace cannot. A directory of the image keeps its mode.
        """
        root, is_root = self.root, posix.geteuid() == 0
        is_new = root.stat(path) is None
        kernel.close(root.dir_fd(path.rpartition("/")[0], create=True, kernel=kernel))
        fd = root.dir_fd(path, create=True, mode=mode if is_root else 0o755, kernel=kernel)
        try:
            current = posix.fstat(fd).st_mode & 0o7777
        finally:
            kernel.close(fd)
        if is_new:
            return path, current & 0o7000 | mode  # an inherited set-group-id bit stays
        if not is_root and current & 0o700 != 0o700:
            root.chmod(path, current | 0o700, kernel=kernel)
        return path, current


def _link_at(folder: int | None, name: str) -> tuple[bool, str | None]:
    """Report whether a link can be made in a folder (None: a new one); return an existing one."""
    status = None if folder is None else lstat_or_none(name, folder)
    if status is None or folder is None:
        return True, None
    text = link_text(name, folder)
    is_empty_file = status.st_mode & S_IFMT == S_IFREG and not status.st_size
    return text is not None or is_empty_file, text
