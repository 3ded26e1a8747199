# SPDX-License-Identifier: Apache-2.0
"""Hook update-ldcache: let the container's dynamic linker find the libraries of some folders.

No ldconfig runs, and no program of the image: ld.so.cache is edited as data, our libraries before
others of the same name. A drop-in keeps them through a later ldconfig in the container. Where the
cache is of a format unknown here it stays, the drop-in is written and a warning says so. musl has
no cache; its path file gets the folders. An image with neither linker is left alone.
"""

from __future__ import annotations

import posix

from nvct.errors import LdCacheError
from nvct.linux import ldcache
from nvct.linux.constants import S_IFDIR, S_IFMT
from nvct.rootfs import linker, linker_conf
from nvct.rootfs.libraries import Mounts, scan
from nvct.rootfs.linker import CACHE, LIBC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.hook.context import Context
    from nvct.linux.root import Root
    from nvct.rootfs.libraries import Found


def run(context: Context) -> None:
    """Update the cache for the folders given, and for those enable-cuda-compat left.

    Raises:
        NvctError: the container's files don't allow it.
    """
    folders = context.options.values("folder")
    root = context.root()
    update(context, folders, linker_conf.read(root).compat)


def update(context: Context, folders: list[str], compat: list[str]) -> None:
    """Make the libraries of folders loadable, those of compat before the others.

    Raises:
        NvctError: the container's files don't allow it.
    """
    root = context.root()
    musl = linker.musl_path(root)
    if musl:
        linker.update_musl(root, musl, folders, context.kernel)
    if linker.has_glibc(root):
        _Update(context, root).run(folders, compat)


class _Update:
    """One update of a glibc container."""

    __slots__ = ("_cache", "_context", "_data", "_old", "_root")

    def __init__(self, context: Context, root: Root) -> None:
        self._context = context
        self._root = root
        self._old = linker_conf.read(root)
        self._data = root.read_file(CACHE, ldcache.LIMIT)
        self._cache: ldcache.Cache | None = None
        if self._data is not None:
            try:
                self._cache = ldcache.parse(self._data)
            except LdCacheError as error:
                context.warn(
                    f"{error.message}; it is left as it is, run ldconfig in the container"
                )

    def run(self, folders: list[str], compat: list[str]) -> None:
        root = self._root
        mounts = Mounts.read(root, self._context.proc_root)
        default = self._default_folders()
        libraries: Found = {}
        kept: list[str] = []
        seen: set[str] = set()
        for folder in [*compat, *folders]:
            place = root.resolve(folder)
            if place is None or place in seen or not _is_folder(root, place):
                continue
            seen.add(place)
            shown = default.get(place, folder.rstrip("/"))
            for machine, found in scan(root, place, mounts, self._context.warn, shown).items():
                libraries.setdefault(machine, []).extend(found)
            if folder not in compat and place not in default:
                kept.append(shown)
        kept = self._uncovered(kept, {pair for found in libraries.values() for pair in found})
        view = [f for f in self._old.view if root.listdir(f)]  # mounted: the shim's work, not ours
        if view:
            compat = compat or self._old.compat
        new = linker_conf.LinkerConf(compat, kept, view)
        self._write_cache(libraries, [f for f in self._old.all if f not in new.all])
        linker_conf.write(root, new, self._context.kernel)

    def _default_folders(self) -> dict[str, str]:
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

    def _uncovered(self, folders: list[str], ours: set[tuple[str, str]]) -> list[str]:
        """Return the folders that a later ldconfig would not search by itself.

        It does where libc is, and where the image's own cache has entries from. What an earlier
        start added, even one that was killed before it wrote the drop-in, is no proof.
        """
        folders = [f for f in folders if not self._root.is_file(f"{f}/{LIBC}")]
        if not folders or self._cache is None:
            return folders
        unproven = {*self._old.folders, *self._old.compat}
        cached: set[str] = set()  # of these folders alone: an image's cache may name any number
        for _, name, path, _, _ in self._cache.records:
            place = self._cache.text(path)
            folder = place.rpartition("/")[0]
            if folder in folders and (self._cache.text(name), place) not in ours:
                cached.add(folder)
        return [f for f in folders if f not in cached or f in unproven]

    def _write_cache(self, libraries: Found, gone: list[str]) -> None:
        if self._data is not None and self._cache is None:
            return
        data = self._data
        for machine in ldcache.FLAGS:
            found = libraries.get(machine, [])
            if found or (gone and data is not None):
                data = ldcache.merge(data, found, machine=machine, drop_dirs=gone)
                gone = []
        if data is not None and data != self._data:
            self._root.write_file(CACHE, data, kernel=self._context.kernel)


def _is_folder(root: Root, place: str) -> bool:
    found = root.stat(place)
    return found is not None and found.st_mode & S_IFMT == S_IFDIR


def forget(context: Context, folders: list[str]) -> None:
    """Take the entries of folders out of the cache.

    Raises:
        NvctError: the container's files don't allow it.
    """
    root = context.root()
    data = root.read_file(CACHE, ldcache.LIMIT)
    if data is None or not folders:
        return
    try:
        new = ldcache.merge(data, (), machine=posix.uname().machine, drop_dirs=folders)
    except LdCacheError as error:
        context.warn(f"{error.message}; it is left as it is")
        return
    if new != data:
        root.write_file(CACHE, new, kernel=context.kernel)
