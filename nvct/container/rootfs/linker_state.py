# SPDX-License-Identifier: Apache-2.0
"""What a glibc image's dynamic linker knows already, and what it is to know.

Contract: reads only; who asks writes. Its own folders need no drop-in, and its cache is edited as
data, our libraries before others of the same name. A cache of an unknown format is left alone.
"""

from __future__ import annotations

from nvct.container.rootfs import linker_conf
from nvct.container.rootfs.linker import CACHE, LIBC
from nvct.errors import LdCacheError
from nvct.linux import ldcache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.rootfs.changes import Changes
    from nvct.container.rootfs.libraries import Found
    from nvct.linux.root import Root


class Known:
    """The cache and the drop-in as they are.

    Attributes:
        old: the drop-in of an earlier start.
        data: the cache's content, None where there is none.
        trouble: why the cache cannot be edited, "" where it can.
    """

    __slots__ = ("_cache", "_root", "data", "old", "trouble")

    def __init__(self, root: Root) -> None:
        """Read both.

        Raises:
            UnsafePathError: something else than a regular file of usual size is there.
        """
        self._root = root
        self.old = linker_conf.read(root)
        self.data = root.read_file(CACHE, ldcache.LIMIT)
        self.trouble = ""
        self._cache: ldcache.Cache | None = None
        if self.data is not None:
            try:
                self._cache = ldcache.parse(self.data)
            except LdCacheError as error:
                self.trouble = error.message

    def default_folders(self) -> dict[str, str]:
        """Return the folders of the image's libc, by path without links, as its cache calls them.

        A merged /usr makes one folder of /lib/TRIPLET and /usr/lib/TRIPLET; ldconfig keeps the
        name it met first. The dynamic linker searches these without any configuration.
        """
        found: dict[str, str] = {}
        paths = self._cache.find(LIBC) if self._cache is not None else ()
        for folder in dict.fromkeys([path.rpartition("/")[0] for path in paths]):
            place = self._root.resolve(folder)
            if place is not None:
                found.setdefault(place, folder)
        return found

    def uncovered(self, folders: list[str], libraries: Found) -> list[str]:
        """Return the folders that a later ldconfig would not search by itself.

        It does where libc is, and where the image's own cache has entries from. What an earlier
        start added, even one that was killed before it wrote the drop-in, is no proof.
        """
        folders = [f for f in folders if not self._root.is_file(f"{f}/{LIBC}")]
        if not folders or self._cache is None:
            return folders
        ours = {pair for found in libraries.values() for pair in found}
        unproven = {*self.old.folders, *self.old.compat}
        names = {ldcache.encode(f) for f in folders}
        cached: set[str] = set()  # of these folders alone: an image's cache may name any number
        for _, name, path, _, _ in self._cache.records:
            if self._cache.raw(path).rpartition(b"/")[0] in names:
                place = self._cache.text(path)
                if (self._cache.text(name), place) not in ours:
                    cached.add(place.rpartition("/")[0])
        return [f for f in folders if f not in cached or f in unproven]

    def merged(self, libraries: Found, new: linker_conf.LinkerConf) -> bytes | None:
        """Return the cache as it is to be, None where it stays as it is.

        Args:
            libraries: that are to be found, by machine.
            new: the drop-in to come; what only the old one had goes.

        Raises:
            LdCacheError: a name cannot stand in a cache.
        """
        if self.trouble:
            return None
        gone = [folder for folder in self.old.all if folder not in new.all]
        data = self.data
        for machine in ldcache.FLAGS:
            found = libraries.get(machine, [])
            if found or (gone and data is not None):
                data = ldcache.merge(data, found, machine=machine, drop_dirs=gone)
                gone = []
        return None if data == self.data else data

    def add_to(
        self,
        changes: Changes,
        libraries: Found,
        compat: list[str],
        folders: list[str],
        view: list[str] | None = None,
    ) -> None:
        """Add the cache with some libraries, and the drop-in that keeps them in it.

        Args:
            changes: of the root.
            libraries: that are to be found, by machine.
            compat: folders of CUDA compatibility libraries.
            folders: of the driver, where the dynamic linker does not search by itself.
            view: folders of a view of the driver.

        Raises:
            LdCacheError: a name cannot stand in a cache.
            UnsafePathError: a folder cannot be named in the drop-in.
        """
        new = linker_conf.LinkerConf(compat, self.uncovered(folders, libraries), view)
        data = self.merged(libraries, new)
        if data is not None:
            changes.file(CACHE, self.data, data)
        changes.linker_conf(new)
