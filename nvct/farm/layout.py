# SPDX-License-Identifier: Apache-2.0
"""The paths of the driver's files in a view. Pure functions.

CUDA images name `lib64` and `lib` of /usr/local/nvidia in LD_LIBRARY_PATH, and its `bin` in PATH.
`lib` contains the 32-bit libraries. `share` contains files that programs look up at a fixed path,
`lib64` also Xorg's modules: containers get both by single mounts of the view's files.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from nvct.host.model import DriverFile, Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.host.model import Capability

COMPAT32: Capability = "compat32"
NOT_HELD = ("socket", "directory")
_LIBRARY_DIR = re.compile(r"/(?:usr/)?lib(?:32|64)?/(?:[a-z0-9_]+-linux-gnu[a-z0-9]*/)?")
_DATA_DIR = re.compile(r"/(?:usr/(?:local/)?share|etc|usr/lib|lib)/")


class Place(NamedTuple):
    """A file and its path in the view."""

    path: str
    file: DriverFile


def places(files: Iterable[DriverFile]) -> list[Place]:
    """Return the files of a view, sorted by path; the paths are unique."""
    taken: dict[str, DriverFile] = {}
    for file in files:
        if file.kind in NOT_HELD:
            continue
        path = _path(file)
        if path in taken and taken[path].host_path != file.host_path:
            path = "share" + file.container_path
        taken.setdefault(path, file)
    return [Place(path, file) for path, file in sorted(taken.items())]


def _path(file: DriverFile) -> str:
    folder, name = os.path.split(file.container_path)
    match file.kind:
        case "library":
            base = "lib" if file.capability == COMPAT32 else "lib64"
            return f"{base}/vdpau/{name}" if folder.endswith("/vdpau") else f"{base}/{name}"
        case "binary":
            return f"bin/{name}"
        case "module":
            return "lib64/" + _LIBRARY_DIR.sub("", file.container_path, count=1).lstrip("/")
    return "share/" + _DATA_DIR.sub("", file.container_path, count=1).lstrip("/")


def links(held: Iterable[Place]) -> list[Link]:
    """Return the links to make in a view, sorted; targets are relative."""
    held = list(held)
    files = {place.path for place in held}
    found: dict[str, Link] = {}
    for place in held:
        for link in place.file.links:
            made = _link(place, link)
            if made is not None and made.path not in files:
                found.setdefault(made.path, made)
    return [found[path] for path in sorted(found)]


def _link(place: Place, link: Link) -> Link | None:
    """Return a file's link as it is in the view, None if it would leave the view."""
    folder = os.path.dirname(place.file.container_path)
    beside = os.path.relpath(link.path, folder)
    path = os.path.normpath(os.path.join(os.path.dirname(place.path), beside))
    aim = os.path.normpath(os.path.join(os.path.dirname(link.path), link.target))
    known = _LIBRARY_DIR.match(link.path)
    if path.startswith("..") and known and os.path.dirname(aim) == folder:
        # A loader's link to a library in a folder of the driver's own (Debian).
        path = f"{place.path.partition('/')[0]}/{link.path[known.end() :]}"
        name = os.path.join(os.path.dirname(place.path), os.path.basename(aim))
        return Link(path=path, target=os.path.relpath(name, os.path.dirname(path)))
    target = os.path.normpath(os.path.join(os.path.dirname(path), link.target))
    if os.path.isabs(link.target) or path.startswith("..") or target.startswith(".."):
        return None
    return Link(path=path, target=link.target)
