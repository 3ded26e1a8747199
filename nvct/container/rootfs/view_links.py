# SPDX-License-Identifier: Apache-2.0
"""Links into the driver's view, made where programs of an image look for the driver's files.

Contract: reads only; the caller writes.
"""

from __future__ import annotations

import posix

from nvct.container.rootfs import linker
from nvct.errors import UnsafePathError
from nvct.linux.walk import entries, link_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.linux.root import Root

PLACE = "/usr/local/nvidia"
"""Where CUDA images look: PATH, LD_LIBRARY_PATH and ld.so.conf.d of public ones name it."""
BESIDE_COMPAT = f"{PLACE}/drv"
"""Where no image looks: CUDA forward compatibility has to come first."""
LAST_RESORT = "/dev/.nvct"
"""On the runtime's own tmpfs, where a read-only image has no mount point."""
TARGETS = (f"{PLACE}/", f"{LAST_RESORT}/")
LIBRARIES, LIBRARIES_32 = "LIBDIR/", "LIBDIR32/"
"""Stand for the image's folders of libraries in the links of plan["farm"]."""
PROGRAMS = "/usr/bin"
BELOW = ("", "/gbm", "/vdpau")
ENTRY_LIMIT, LINK_LIMIT = 1 << 15, 512


def placed(root: Root, links: Iterable[list[str]]) -> dict[str, str]:
    """Return paths of links in the container with their paths in the view.

    Links for a library folder that the image does not have are left out.

    Args:
        root: the container's.
        links: (path, path in the view) each; a path may begin with LIBRARIES or LIBRARIES_32.
    """
    folders: dict[str, str] = {}
    paths: dict[str, str] = {}
    for path, target in links:
        mark, slash, rest = path.partition("/")
        if not mark:
            paths[path] = target
            continue
        if mark not in folders:
            is_own = mark + slash == LIBRARIES
            folders[mark] = (
                linker.library_folder(root) if is_own else linker.library_folder_32(root)
            )
        if folders[mark]:
            paths[f"{folders[mark]}/{rest}"] = target
    return paths


def left_behind(root: Root, folders: Iterable[str], kept: Iterable[str] = ()) -> list[str]:
    """Return links into a view that an earlier start made and that lead nowhere now.

    A container that starts again, or is started from a committed image, has those of the driver,
    the layout and the capabilities of that time. What an image brings any number of costs bounded
    time.

    Args:
        root: the container's.
        folders: where such links may be, beside the image's folders of libraries and programs.
        kept: paths of links that stay.
    """
    if _has_files(root, PLACE, "drv") or _has_files(root, BESIDE_COMPAT):
        return []  # of the image: its links may lead to them
    places = [PROGRAMS, *folders]
    for library in (linker.library_folder(root), linker.library_folder_32(root)):
        places += [library + below for below in BELOW if library]
    stays = set(kept)
    found: list[str] = []
    entries_left = ENTRY_LIMIT
    for place in dict.fromkeys(places):
        entries_left -= _add_into_views(root, place, found, entries_left)
    return [path for path in found if path not in stays]


def _has_files(root: Root, path: str, *ours: str) -> bool:
    try:
        return any(name not in ours for name in root.listdir(path, 1 + len(ours)) or ())
    except UnsafePathError:
        return True


def _add_into_views(root: Root, folder: str, found: list[str], limit: int) -> int:
    """Add the links of a folder into views, to files of their own name.

    Args:
        root: the container's.
        folder: a path in it.
        found: gets the paths, LINK_LIMIT at most.
        limit: how many names are looked at.

    Returns:
        How many names were looked at.
    """
    fd = root.path_fd(folder)
    if fd is None:
        return 0
    number = 0
    try:
        with entries(fd) as listed:
            for entry in listed:
                number += 1
                if number > limit or len(found) >= LINK_LIMIT:
                    break
                text = link_text(entry.name, fd) if entry.is_symlink() else None
                if text and text.startswith(TARGETS) and text.endswith(f"/{entry.name}"):
                    found.append(f"{folder}/{entry.name}")
    except OSError:  # no directory, or no longer
        return number
    finally:
        posix.close(fd)
    return number
