# SPDX-License-Identifier: Apache-2.0
"""What makes an image's programs find the files of a farm view: links and ld.so.cache.

Contract: reads only; the caller writes.
"""

from __future__ import annotations

import posix

from nvct.container.rootfs import linker
from nvct.errors import UnsafePathError
from nvct.linux import ldcache
from nvct.linux.walk import entries, link_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from nvct.container.rootfs.changes import Changes
    from nvct.linux.root import Root

    Entries: TypeAlias = list[tuple[str, str]]


MOUNT_POINT = "/usr/local/nvidia"
"""In PATH, LD_LIBRARY_PATH and ld.so.conf.d of public CUDA images."""
BESIDE_COMPAT = f"{MOUNT_POINT}/drv"
"""In no search path of images: CUDA forward compatibility must come first."""
LAST_RESORT = "/dev/.nvct"
"""On the tmpfs of the runtime, for read-only images without a mount point."""
OF_SPEC = "/.nvct/driver"
"""Where CDI specifications mount a view: they cannot look at the image, and images lack it."""
TARGETS = (f"{MOUNT_POINT}/", f"{LAST_RESORT}/", f"{OF_SPEC}/")
LIBRARIES, LIBRARIES_32 = "LIBDIR/", "LIBDIR32/"
"""Placeholders for the image's library folders in the links of plan["farm"]."""
PROGRAMS = "/usr/bin"
FOLDERS = {"lib64": LIBRARIES, "lib": LIBRARIES_32, "bin": f"{PROGRAMS}/"}
"""Folders of a view, and where containers get links to what is in them."""
BELOW = ("", "/gbm", "/vdpau")
ENTRY_LIMIT, LINK_LIMIT = 1 << 15, 512


def in_container(path: str) -> str:
    """Return where programs look for a path of a view; it may begin with LIBRARIES and so on."""
    folder, _, below = path.partition("/")
    return FOLDERS.get(folder, "/") + below


def placed(root: Root, links: Iterable[list[str]], folder: str = "") -> dict[str, str]:
    """Return the links: path in the container -> path in the view.

    `links` are (path, path in the view). A path may begin with LIBRARIES or LIBRARIES_32; it is
    skipped if the image has no such folder. `folder` replaces the image's folder for libraries of
    this machine.
    """
    folders: dict[str, str] = {}
    paths: dict[str, str] = {}
    for path, target in links:
        mark, slash, name = path.partition("/")
        if not mark:
            paths[path] = target
            continue
        if mark not in folders:
            is_own = mark + slash == LIBRARIES
            folders[mark] = (
                (folder or linker.library_folder(root))
                if is_own
                else linker.library_folder_32(root)
            )
        if folders[mark]:
            paths[f"{folders[mark]}/{name}"] = target
    return paths


def left_behind(root: Root, folders: Iterable[str], current: Iterable[str] = ()) -> list[str]:
    """Return dangling links into a view that an earlier start made, without `current` ones.

    A restarted container, or one from a committed image, has the links for the driver, layout and
    capabilities of the earlier start. `folders` are searched besides those of libraries and
    programs. The number of inspected names is limited.
    """
    if _has_files(root, MOUNT_POINT, "drv") or _has_files(root, BESIDE_COMPAT):
        return []  # files of the image: its links may lead to them
    searched = [PROGRAMS, *folders]
    for library in (linker.library_folder(root), linker.library_folder_32(root)):
        searched += [library + below for below in BELOW if library]
    current_paths = set(current)
    links: list[str] = []
    entries_left = ENTRY_LIMIT
    for folder in dict.fromkeys(searched):
        entries_left -= _add_into_views(root, folder, links, entries_left)
    return [path for path in links if path not in current_paths]


def _has_files(root: Root, path: str, *own_names: str) -> bool:
    try:
        return any(name not in own_names for name in root.listdir(path, 1 + len(own_names)) or ())
    except UnsafePathError:
        return True


def _add_into_views(root: Root, folder: str, links: list[str], limit: int) -> int:
    """Append a folder's links into views, to files of the same name; return how many were seen."""
    fd = root.path_fd(folder)
    if fd is None:
        return 0
    number = 0
    try:
        with entries(fd) as listed:
            for entry in listed:
                number += 1
                if number > limit or len(links) >= LINK_LIMIT:
                    break
                text = link_text(entry.name, fd) if entry.is_symlink() else None
                if text and text.startswith(TARGETS) and text.endswith(f"/{entry.name}"):
                    links.append(f"{folder}/{entry.name}")
    except OSError:  # not a directory
        return number
    finally:
        posix.close(fd)
    return number


def add_cache(  # noqa: PLR0917
    changes: Changes,
    mount_point: str,
    libraries: Entries,
    libraries_32: Entries | None,
    compat: str,
    warn: Callable[[str], None],
) -> bool:
    """Add the entries and the drop-in to changes; return whether an earlier start made a drop-in.

    Libraries are (name, path in the container); those of 32 bits are None if the container does
    not get them. Raises LdCacheError if the image's cache has an unknown format, and
    UnsafePathError if a path is not a regular file.
    """
    root = changes.root
    earlier = linker.read_conf(root)
    folders = [f"{mount_point}/lib64"]
    if libraries_32 is not None:
        folders.append(f"{mount_point}/lib")
    linker.add_conf(changes, linker.LinkerConf([compat] if compat else [], [], folders))
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
