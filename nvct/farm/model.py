# SPDX-License-Identifier: Apache-2.0
"""Views of a driver's user space, and the manifest that describes the content of each.

Contract: values and their JSON form. A manifest is beside its view, belongs to root like the view,
and is the only record of the driver's files after a package upgrade has replaced them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from os import stat_result
from typing import Any, Literal, NamedTuple, TypeAlias

from nvct import typed
from nvct.container.rootfs.view_links import MOUNT_POINT
from nvct.errors import DocumentError
from nvct.host.driver.libraries import COMPAT_MACHINES
from nvct.host.model import Capability, DriverFile, Link

FORMAT = 1
Method: TypeAlias = Literal["own", "links", "reflinks", "binds", "copies"]
METHODS: tuple[Method, ...] = ("own", "links", "reflinks", "binds")
"""Methods to make a view of a driver on the disk, cheapest first."""
LEAN: tuple[Method, ...] = ("own", "links", "reflinks")
"""Methods whose views survive a boot and have no mount per file."""
SAVING: tuple[Method, ...] = ("links", "reflinks", "copies", "binds")
"""Methods to make a view from another view whose driver was removed from the disk."""
# The library with a simulated node's state; it changes while it is in use.
LIVE = "libnvidia-simstate.so."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The stat data that identify an unchanged file."""

    dev: int
    ino: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: stat_result) -> Identity:
        """Return the identity of a file."""
        return cls(
            dev=status.st_dev, ino=status.st_ino, size=status.st_size, mtime_ns=status.st_mtime_ns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a view."""

    path: str
    # as in the inventory; its host path is that of the driver's own file, even if another view was
    # the source
    file: DriverFile
    source: Identity  # of the file that was linked, bound or copied
    held: Identity  # of the view's file
    digest: str = ""  # of the content; "" until `verify` computes it

    @property
    def is_live(self) -> bool:
        """Return whether the file changes while it is in use."""
        return LIVE in self.path

    def is_kept(self, current: Identity) -> bool:
        """Return whether a view's file is unchanged; a boot may change its device number."""
        is_same_file = (current.ino, current.size) == (self.held.ino, self.held.size)
        return is_same_file and (self.is_live or current.mtime_ns == self.held.mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a view and its origin."""

    name: str  # of the view: the driver's version and a hash of the sources
    version: str
    cuda_version: str
    method: Method
    path: str  # of the view's folder; outside the farm if method is "own"
    made: int  # seconds since 1970
    entries: tuple[Entry, ...]
    links: tuple[Link, ...]
    # host paths that are missing in the view, with the reasons
    left_out: tuple[tuple[str, str], ...] = ()

    def host_path(self, path: str) -> str:
        """Return the host path of a path in the view."""
        return f"{self.path}/{path}"

    @property
    def held_files(self) -> tuple[DriverFile, ...]:
        """Return the driver's files, with the paths of the view's files as host paths."""
        return tuple(
            replace(entry.file, host_path=self.host_path(entry.path)) for entry in self.entries
        )


def dumps(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    return (json.dumps({"nvct-farm": FORMAT, **asdict(manifest)}, indent=1) + "\n").encode()


def loads(data: bytes, path: str) -> Manifest:
    """Parse a manifest. Raises DocumentError if it is damaged, or of another version."""
    try:
        document = json.loads(data)
        if document.pop("nvct-farm") != FORMAT:
            raise DocumentError(f"{path} has another format version")
        for entry in document["entries"]:
            _complete(entry["file"])
        manifest = typed.load(Manifest, document)
        below = [*(link.path for link in manifest.links), *(e.path for e in manifest.entries)]
        if any(path.startswith("/") or ".." in path.split("/") for path in below):
            raise ValueError("a path leads out of the view")  # noqa: TRY301
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DocumentError(f"{path} is not a manifest of a view: {error}") from error
    return manifest


def _complete(file: dict[str, Any]) -> None:
    """Add the machine of a library, which manifests before plan format 5 lack."""
    native = os.uname().machine
    is_compat = file["capability"] == "compat32"
    machine = COMPAT_MACHINES.get(native, "") if is_compat else native
    file.setdefault("machine", machine if file["kind"] == "library" else "")


# The paths of the driver's files in a view. CUDA images name `lib64` and `lib` of
# /usr/local/nvidia in LD_LIBRARY_PATH, and its `bin` in PATH. `lib` contains the 32-bit libraries.
# `share` contains files that programs look up at a fixed path, `lib64` also Xorg's modules:
# containers get both by single mounts of the view's files. If the driver itself is in
# /usr/local/nvidia, which the view covers in a container, such a file keeps its path.
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
        # Debian links a library in the driver's own folder from the loader's folder.
        path = f"{view_file.path.partition('/')[0]}/{link.path[match.end() :]}"
        name = os.path.join(os.path.dirname(view_file.path), os.path.basename(destination))
        return Link(path=path, target=os.path.relpath(name, os.path.dirname(path)))
    target = os.path.normpath(os.path.join(os.path.dirname(path), link.target))
    if os.path.isabs(link.target) or path.startswith("..") or target.startswith(".."):
        return None
    return Link(path=path, target=link.target)
