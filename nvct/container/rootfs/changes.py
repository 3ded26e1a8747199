# SPDX-License-Identifier: Apache-2.0
"""What is to be changed in a container's root, and doing it as the container's own root user.

Contract: everything is read before the first change is made, since reading takes the rights of who
reads. Files and links made by another user than the container's root would be nobody's in its user
namespace, and on an idmapped mount the kernel refuses them (EOVERFLOW).
"""

from __future__ import annotations

import posix

from nvct.container.rootfs import linker_conf
from nvct.errors import UnsafePathError
from nvct.linux.constants import S_IFMT, S_IFREG
from nvct.linux.files import lstat_or_none
from nvct.linux.walk import link_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import stat_result

    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root


class Changes:
    """Files and links to be put into a root.

    Attributes:
        files: (path, content, mode) each; none is there with this content.
        gone: paths of files that are to go.
        sealed: (path, mode) of directories that nobody is to write to, to be made beforehand.
        links: (target, path) each.
        root: of the container.
    """

    __slots__ = ("files", "gone", "links", "root", "sealed")

    def __init__(self, root: Root) -> None:
        """Start with nothing."""
        self.root = root
        self.files: list[tuple[str, bytes, int]] = []
        self.gone: list[str] = []
        self.links: list[tuple[str, str]] = []
        self.sealed: list[tuple[str, int]] = []

    def file(self, path: str, old: bytes | None, new: bytes, mode: int = 0o644) -> bool:
        """Add a file, unless it is there as it is to be; tell whether it was added."""
        if new != old:
            self.files.append((path, new, mode))
        return new != old

    def linker_conf(self, conf: linker_conf.LinkerConf) -> None:
        """Add the drop-in of the dynamic linker, and what includes it; none if it says nothing.

        Raises:
            UnsafePathError: a folder cannot be named in it, or the file there is no regular one.
        """
        root = self.root
        data = conf.render()
        old = root.read_file(linker_conf.PATH, linker_conf.LIMIT)
        if not data:
            self.gone += [linker_conf.PATH] if old is not None else []
            return
        self.file(linker_conf.PATH, old, data)
        if root.lstat(linker_conf.MAIN) is None:
            self.file(linker_conf.MAIN, None, linker_conf.MAIN_TEXT)

    def link_all(self, links: Iterable[tuple[str, str]]) -> tuple[list[str], bool]:
        """Add links, (target, path) each.

        No file of the image is replaced by one, but a link is. What a runtime made to mount on,
        an empty file, is left behind by `commit`; it is none. A directory is looked up once.

        Returns:
            The paths of those that can be made or are there, and whether any is there.
        """
        made: list[str] = []
        is_any_there = False
        folders: dict[str, int | None] = {}
        try:
            for target, path in links:
                parent, _, name = path.rpartition("/")
                try:
                    if parent not in folders:
                        folders[parent] = self.root.path_fd(parent or "/")
                    can_be, text = _link_at(folders[parent], name)
                except (UnsafePathError, OSError):
                    continue
                if can_be:
                    made.append(path)
                    is_any_there = is_any_there or text == target
                    if text != target:
                        self.links.append((target, path))
        finally:
            for fd in folders.values():
                if fd is not None:
                    posix.close(fd)
        return made, is_any_there

    def write(self, kernel: Kernel, owner: tuple[int, int] | None = None) -> None:
        """Make all changes, acting as `owner`, as this process where there is none.

        Raises:
            UnsafePathError: the root is not as it was.
            OSError: it cannot be written to.
        """
        if not (self.files or self.links or self.gone):
            return
        before = posix.geteuid(), posix.getegid()
        switch = owner is not None and before[0] == 0 and owner != before
        root = self.root
        budget, root.budget = root.budget, None  # what is decided is done: few paths
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
            for path in self.gone:
                root.unlink(path, kernel=kernel)
            root.symlinks(self.links, kernel=kernel)
        finally:
            root.budget = budget
            if switch:
                kernel.set_effective_ids(*before)

    def _open_up(self, path: str, mode: int, kernel: Kernel) -> tuple[str, int]:
        """Make a directory that we can write to; return the mode that it is to have then.

        A user namespace's root could not write to a sealed one; the host's can, and who is killed
        leaves it as it is to be. The image's own keeps its mode.
        """
        root, is_root = self.root, posix.geteuid() == 0
        is_new = root.stat(path) is None
        kernel.close(root.dir_fd(path.rpartition("/")[0], create=True, kernel=kernel))
        fd = root.dir_fd(path, create=True, mode=mode if is_root else 0o755, kernel=kernel)
        try:
            there = posix.fstat(fd).st_mode & 0o7777
        finally:
            kernel.close(fd)
        if is_new:
            return path, there & 0o7000 | mode  # an inherited set-group-id bit stays
        if not is_root and there & 0o700 != 0o700:
            root.chmod(path, there | 0o700, kernel=kernel)
        return path, there


def _link_at(folder: int | None, name: str) -> tuple[bool, str | None]:
    """Return whether a link can stand in a folder, None for one to be made, and what link does."""
    found = None if folder is None else lstat_or_none(name, folder)
    if found is None or folder is None:
        return True, None
    text = link_text(name, folder)
    return text is not None or _is_empty_file(found), text


def _is_empty_file(found: stat_result) -> bool:
    return found.st_mode & S_IFMT == S_IFREG and not found.st_size
