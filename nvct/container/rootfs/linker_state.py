# SPDX-License-Identifier: Apache-2.0
"""The cache and the drop-in of glibc's dynamic linker in an image, and their next content.

Contract: reads only; the caller writes. The linker's default folders need no drop-in. The cache
is edited as data, with our libraries before others of the same name. A cache of an unknown format
is not changed.
"""

from __future__ import annotations

from nvct.container.rootfs import linker
from nvct.container.rootfs.linker import CACHE, LIBC
from nvct.errors import LdCacheError
from nvct.linux import ldcache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.rootfs.changes import Changes
    from nvct.container.rootfs.libraries import Libraries
    from nvct.linux.root import Root


class LinkerState:
    """The current cache and drop-in; UnsafePathError if one is not a file or too large."""

    __slots__ = ("_cache", "_root", "data", "earlier", "problem")

    def __init__(self, root: Root) -> None:
        self._root = root
        self.earlier = linker.read_conf(root)  # the drop-in of an earlier start
        # the content of the cache, None if there is none
        self.data = root.read_file(CACHE, ldcache.LIMIT)
        self.problem = ""  # why the cache cannot be edited, or ""
        self._cache: ldcache.Cache | None = None
        if self.data is not None:
            try:
                self._cache = ldcache.parse(self.data)
            except LdCacheError as error:
                self.problem = error.message

    def default_folders(self) -> dict[str, str]:
        """Return the folders of the image's libc: resolved path -> name in the cache.

        With a merged /usr, /lib/TRIPLET and /usr/lib/TRIPLET are the same folder; ldconfig keeps
        the first name. The dynamic linker searches these folders without any configuration.
        """
        folders: dict[str, str] = {}
        paths = self._cache.find(LIBC) if self._cache is not None else ()
        for folder in dict.fromkeys([path.rpartition("/")[0] for path in paths]):
            resolved = self._root.resolve(folder)
            if resolved is not None:
                folders.setdefault(resolved, folder)
        return folders

    def uncovered(self, folders: list[str], libraries: Libraries) -> list[str]:
        """Return the folders that ldconfig in the container would not search by itself.

        It searches the folders of libc and those in the image's own cache. Entries that an earlier
        start added do not count, even if it was killed before it wrote the drop-in.
        """
        folders = [f for f in folders if not self._root.is_file(f"{f}/{LIBC}")]
        if not folders or self._cache is None:
            return folders
        injected = {pair for pairs in libraries.values() for pair in pairs}
        unproven = {*self.earlier.folders, *self.earlier.compat}
        names = {ldcache.encode(f) for f in folders}
        cached: set[str] = set()  # only these folders: an image's cache may have any number
        for _, name, path, _, _ in self._cache.records:
            if self._cache.raw(path).rpartition(b"/")[0] in names:
                file = self._cache.text(path)
                if (self._cache.text(name), file) not in injected:
                    cached.add(file.rpartition("/")[0])
        return [f for f in folders if f not in cached or f in unproven]

    def merged(self, libraries: Libraries, conf: linker.LinkerConf) -> bytes | None:
        """Return the new content of the cache with the new drop-in, None if it does not change.

        Entries of folders that only the earlier drop-in has are removed. Raises LdCacheError if a
        name is not valid in a cache.
        """
        if self.problem:
            return None
        removed = [folder for folder in self.earlier.all if folder not in conf.all]
        data = self.data
        for machine in ldcache.FLAGS:
            pairs = libraries.get(machine, [])
            if pairs or (removed and data is not None):
                data = ldcache.merge(data, pairs, machine=machine, drop_dirs=removed)
                removed = []
        return None if data == self.data else data

    def add_to(
        self,
        changes: Changes,
        libraries: Libraries,
        compat: list[str],
        folders: list[str],
        view: list[str] | None = None,
    ) -> None:
        """Add the new cache and drop-in to changes.

        `folders` are the driver's, without the linker's default ones. Raises LdCacheError or
        UnsafePathError if a name or folder is not valid there.
        """
        conf = linker.LinkerConf(compat, self.uncovered(folders, libraries), view)
        data = self.merged(libraries, conf)
        if data is not None:
            changes.file(CACHE, self.data, data)
        linker.add_conf(changes, conf)
