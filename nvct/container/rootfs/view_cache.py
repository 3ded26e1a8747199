# SPDX-License-Identifier: Apache-2.0
"""The ld.so.cache entries and the drop-in of an image for the libraries of a farm view.

Contract: reads only; the caller writes.
"""

from __future__ import annotations

import posix

from nvct.container.rootfs import linker, linker_conf
from nvct.linux import ldcache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from nvct.container.rootfs.changes import Changes
    from nvct.linux.root import Root

    Entries: TypeAlias = list[tuple[str, str]]


def add(  # noqa: PLR0917
    changes: Changes,
    mount_point: str,
    libraries: Entries,
    libraries_32: Entries | None,
    compat: str,
    warn: Callable[[str], None],
) -> bool:
    """Add the entries and the drop-in to changes; return whether an earlier start made a drop-in.

    Args:
        changes: of the root.
        mount_point: of the view.
        libraries: (name, path in the container) of 64-bit libraries.
        libraries_32: of 32-bit libraries, None if the container does not get them.
        compat: folder of the image's CUDA compatibility libraries, which come first, or "".
        warn: receives warnings about unusable compatibility libraries.

    Raises:
        LdCacheError: the image's cache has an unknown format.
        UnsafePathError: a path is not a regular file.
    """
    root = changes.root
    earlier = linker_conf.read(root)
    folders = [f"{mount_point}/lib64"]
    if libraries_32 is not None:
        folders.append(f"{mount_point}/lib")
    changes.linker_conf(linker_conf.LinkerConf([compat] if compat else [], [], folders))
    data = root.read_file(linker.CACHE, ldcache.LIMIT)
    removed = [*earlier.all, *folders] if earlier.all and data is not None else []
    machine = posix.uname().machine
    entries = _compat(root, compat, machine, warn) + libraries
    new = ldcache.merge(data, entries, machine=machine, drop_dirs=removed)
    if libraries_32 is not None:
        new = ldcache.merge(new, libraries_32, machine="i386")
    changes.file(linker.CACHE, data, new)
    return bool(earlier.view or earlier.all)


def _compat(root: Root, folder: str, machine: str, warn: Callable[[str], None]) -> Entries:
    """Return the entries of the compatibility libraries in a folder of the image."""
    if not folder:
        return []
    from nvct.container.rootfs.libraries import MountTargets, scan

    return scan(root, folder, MountTargets([]), warn).get(machine, [])
