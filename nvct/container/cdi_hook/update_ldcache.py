# SPDX-License-Identifier: Apache-2.0
"""Hook update-ldcache: let the container's dynamic linker find the libraries of some folders.

No ldconfig runs, and no program of the image: ld.so.cache is edited as data, our libraries before
others of the same name. A drop-in keeps them through a later ldconfig in the container. Where the
cache is of a format unknown here it stays, the drop-in is written and a warning says so. musl has
no cache; its path file gets the folders. An image with neither linker is left alone.
"""

from __future__ import annotations

import posix

from nvct.container.rootfs import linker, linker_conf
from nvct.container.rootfs.changes import Changes
from nvct.container.rootfs.libraries import Mounts, scan
from nvct.container.rootfs.linker import CACHE
from nvct.container.rootfs.linker_state import Known
from nvct.errors import LdCacheError
from nvct.linux import ldcache
from nvct.linux.constants import S_IFDIR, S_IFMT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.container.cdi_hook.context import Context
    from nvct.container.rootfs.libraries import Found
    from nvct.linux.root import Root


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
    changes = Changes(context.root())
    musl = linker.musl_path(changes.root)
    if musl:
        linker.add_musl(changes, musl, folders)
    if linker.has_glibc(changes.root):
        _add_glibc(context, changes, folders, compat)
    changes.write(context.kernel)


def _add_glibc(context: Context, changes: Changes, folders: list[str], compat: list[str]) -> None:
    root = changes.root
    known = Known(root)
    if known.trouble:
        context.warn(f"{known.trouble}; it is left as it is, run ldconfig in the container")
    mounts = Mounts.read(root, context.proc_root)
    default = known.default_folders()
    libraries: Found = {}
    kept: list[str] = []
    seen: set[str] = set()
    for folder in [*compat, *folders]:
        place = root.resolve(folder)
        if place is None or place in seen or not _is_folder(root, place):
            continue
        seen.add(place)
        shown = default.get(place, folder.rstrip("/"))
        for machine, found in scan(root, place, mounts, context.warn, shown).items():
            libraries.setdefault(machine, []).extend(found)
        if folder not in compat and place not in default:
            kept.append(shown)
    view = [f for f in known.old.view if root.listdir(f)]  # mounted: the shim's work, not ours
    known.add_to(changes, libraries, compat or (known.old.compat if view else []), kept, view)


def _is_folder(root: Root, place: str) -> bool:
    found = root.stat(place)
    return found is not None and found.st_mode & S_IFMT == S_IFDIR


def forget(context: Context, changes: Changes, folders: list[str]) -> None:
    """Take the entries of folders out of the cache.

    Raises:
        NvctError: the container's files don't allow it.
    """
    data = changes.root.read_file(CACHE, ldcache.LIMIT)
    if data is None:
        return
    try:
        new = ldcache.merge(data, (), machine=posix.uname().machine, drop_dirs=folders)
    except LdCacheError as error:
        context.warn(f"{error.message}; it is left as it is")
    else:
        changes.file(CACHE, data, new)
