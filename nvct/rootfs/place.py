# SPDX-License-Identifier: Apache-2.0
"""Where in a container's root something can be mounted, seen from before it is started.

The mounts of config.json are not there yet: what lies below one of them is not what the container
will see. Contract: reads only.
"""

from __future__ import annotations

import posix

from nvct.errors import UnsafePathError
from nvct.linux.constants import S_IFDIR, S_IFMT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root

SYSTEM = ("/proc", "/sys", "/dev")
"""What engines mount there is not looked for through an image's links."""
STORES = ("/vfs/dir/", "/btrfs/subvolumes/")
"""Drivers of container engines whose roots are plain folders."""
ST_RDONLY = 1
NAME_LIMIT = 4096


def real(root: Root, path: str) -> str:
    """Return a path without links, as far as it exists.

    Raises:
        UnsafePathError: it leads through a file, a link to nowhere, or too many links.
    """
    rest = ""
    while True:
        found = root.resolve(path)
        if found is not None:
            if rest and not _is_folder(root, found):
                raise UnsafePathError(f"{path} is no folder")
            return found.rstrip("/") + rest or "/"
        if root.readlink(path) is not None:
            raise UnsafePathError(f"{path} is a link to nowhere")
        path, _, name = path.rstrip("/").rpartition("/")
        rest = f"/{name}{rest}"


def _is_folder(root: Root, path: str) -> bool:
    found = root.lstat(path)
    return found is not None and found.st_mode & S_IFMT == S_IFDIR


def clean(path: str) -> str:
    """Return a mount's destination as one absolute path: no doubled slashes, no dots."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


class Covered:
    """What the mounts of config.json cover.

    Attributes:
        places: their destinations, as they are written and without links.
    """

    __slots__ = ("places",)

    def __init__(self, root: Root, destinations: Iterable[str]) -> None:
        """Resolve the destinations in the image.

        Runtimes leave a folder that a link led to by `..`, so it is not enough to clean the text.
        """
        found: dict[str, None] = {}
        for destination in destinations:
            plain = clean(destination)
            found[plain] = None
            if not f"{plain}/".startswith(tuple([f"{place}/" for place in SYSTEM])):
                try:
                    found[real(root, plain)] = None
                    if ".." in destination:
                        found[clean(real(root, f"/{destination}"))] = None
                except UnsafePathError:
                    continue  # the runtime will refuse it
        self.places = list(found)

    def above(self, path: str) -> str:
        """Return a mount at a path or above it, "" where there is none."""
        below = f"{path}/"
        return next((p for p in self.places if below.startswith(f"{p.rstrip('/')}/")), "")

    def about(self, path: str) -> str:
        """Return a mount at, above or below a path, "" where there is none."""
        below = f"{path}/"
        return self.above(path) or next((p for p in self.places if p.startswith(below)), "")


def is_read_only(root: Root) -> bool:
    """Tell whether nothing can be made in a root."""
    return bool(posix.fstatvfs(root.fd).f_flag & ST_RDONLY)


def is_engines(root: Root, path: str, bundle: str, kernel: Kernel) -> bool:
    """Tell whether a container's root was made for it: what is written there is its own.

    Podman's `--rootfs DIR` is somebody's folder. It is told by what it is not: no mount, not below
    the bundle, in no store of an engine.
    """
    own = bundle.rstrip("/") + "/"
    if path.startswith(own) and ".." not in path[len(own) :].split("/"):
        return True
    if any(store in path for store in STORES):
        return True
    parent = posix.open("..", posix.O_PATH | posix.O_DIRECTORY, dir_fd=root.fd)
    try:
        return kernel.mount_id(parent) != kernel.mount_id(root.fd)
    finally:
        posix.close(parent)


def mount_point(root: Root, path: str, ours: tuple[str, ...]) -> bool:
    """Tell whether a path without links is a directory of the image; False where nothing is.

    Args:
        root: the container's.
        path: where something is to be mounted.
        ours: names in it that may be there.

    Raises:
        UnsafePathError: something of the image is there that the mount would hide.
    """
    found = root.lstat(path)
    if found is None:
        return False
    if found.st_mode & S_IFMT != S_IFDIR:
        raise UnsafePathError(f"the image has a file {path}")
    names = root.listdir(path, NAME_LIMIT) or []
    if any(name not in ours for name in names):
        raise UnsafePathError(f"the image has files in {path}")
    return True
