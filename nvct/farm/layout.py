# SPDX-License-Identifier: Apache-2.0
"""The paths of the driver's files in a view. Pure functions.

CUDA images name `lib64` and `lib` of /usr/local/nvidia in LD_LIBRARY_PATH, and its `bin` in PATH.
`lib` contains the 32-bit libraries. `share` contains files that programs look up at a fixed path,
`lib64` also Xorg's modules: containers get both by single mounts of the view's files. Such a file
of a driver in /usr/local/nvidia itself, which the view covers in a container, keeps its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from nvct.container.rootfs.view_links import MOUNT_POINT
from nvct.host.model import Capability, DriverFile, Link

COMPAT32: Capability = "compat32"
COVERED = f"{MOUNT_POINT}/"
NOT_HELD = ("socket", "directory")
_LIBRARY_DIR = re.compile(r"/(?:usr/)?lib(?:32|64)?/(?:[a-z0-9_]+-linux-gnu[a-z0-9]*/)?")
_DATA_DIR = re.compile(r"/(?:usr/(?:local/)?share|etc|usr/lib|lib)/")


class ViewFile(NamedTuple):
    """A file and its path in the view."""

    path: str
    file: DriverFile


def view_files(files: Iterable[DriverFile]) -> list[ViewFile]:
    """Return the files of a view, sorted by path; the paths are unique."""
    taken: dict[str, DriverFile] = {}
    for file in files:
        if file.kind in NOT_HELD:
            continue
        path = _path(file)
        if path in taken and taken[path].host_path != file.host_path:
            path = "share" + file.container_path
        taken.setdefault(path, file)
    return [ViewFile(path, file) for path, file in sorted(taken.items())]


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
    if file.container_path.startswith(COVERED):
        return file.container_path.removeprefix(COVERED)
    return "share/" + _DATA_DIR.sub("", file.container_path, count=1).lstrip("/")


def links(view_files: Iterable[ViewFile]) -> list[Link]:
    """Return the links to make in a view, sorted; targets are relative."""
    view_files = list(view_files)
    files = {view_file.path for view_file in view_files}
    by_path: dict[str, Link] = {}
    for view_file in view_files:
        for link in view_file.file.links:
            in_view = _link(view_file, link)
            if in_view is not None and in_view.path not in files:
                by_path.setdefault(in_view.path, in_view)
    return [by_path[path] for path in sorted(by_path)]


def _link(view_file: ViewFile, link: Link) -> Link | None:
    """Return a file's link as it is in the view, None if it would leave the view."""
    folder = os.path.dirname(view_file.file.container_path)
    beside = os.path.relpath(link.path, folder)
    path = os.path.normpath(os.path.join(os.path.dirname(view_file.path), beside))
    destination = os.path.normpath(os.path.join(os.path.dirname(link.path), link.target))
    match = _LIBRARY_DIR.match(link.path)
    if path.startswith("..") and match and os.path.dirname(destination) == folder:
        # A loader's link to a library in a folder of the driver's own (Debian).
        path = f"{view_file.path.partition('/')[0]}/{link.path[match.end() :]}"
        name = os.path.join(os.path.dirname(view_file.path), os.path.basename(destination))
        return Link(path=path, target=os.path.relpath(name, os.path.dirname(path)))
    target = os.path.normpath(os.path.join(os.path.dirname(path), link.target))
    if os.path.isabs(link.target) or path.startswith("..") or target.startswith(".."):
        return None
    return Link(path=path, target=link.target)
