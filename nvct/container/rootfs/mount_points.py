# SPDX-License-Identifier: Apache-2.0
"""Where in a container's root something can be mounted, seen from before it is started.

The mounts of config.json are not there yet: what lies below one of them is not what the container
will see. Contract: reads only.
"""

from __future__ import annotations

import posix

from nvct.errors import NvctError, UnsafePathError
from nvct.linux.constants import S_IFDIR, S_IFMT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.linux.kernel import Kernel
    from nvct.linux.mountinfo import Mount
    from nvct.linux.root import Root

SYSTEM = ("/proc", "/sys", "/dev")
"""What engines mount there is not looked for through an image's links."""
USERDATA = "userdata"
"""The name of the bundles of Podman and CRI-O, below a folder named after the container."""
ID_LENGTH = 64
STORED_DEPTH = 5
"""Parts of STORE/overlay/LAYER/merged, STORE/vfs/dir/LAYER or STORE/btrfs/subvolumes/LAYER."""
STORE_LIMIT = MOUNTINFO_LIMIT = 16 << 20
ST_RDONLY = 1
NAME_LIMIT = 4096


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
        places: their destinations, as they are written and without links, in order.
    """

    __slots__ = ("places",)

    def __init__(self, root: Root, destinations: Iterable[str]) -> None:
        """Resolve the destinations in the image.

        Runtimes leave a folder that a link led to by `..`, so it is not enough to clean the text.

        Raises:
            HostError: following them takes more steps than the root's budget has.
        """
        found: dict[str, None] = {}
        for destination in destinations:
            plain = clean(destination)
            found[plain] = None
            if not f"{plain}/".startswith(tuple([f"{place}/" for place in SYSTEM])):
                try:
                    found[root.real(plain)] = None
                    if ".." in destination:
                        found[clean(root.real(f"/{destination}"))] = None
                except UnsafePathError:
                    continue  # the runtime will refuse it
        self.places = found

    def above(self, path: str) -> str:
        """Return the outermost mount at a path or above it, "" where there is none."""
        end = 0
        while end >= 0:
            if (path[:end] or "/") in self.places:
                return path[:end] or "/"
            end = path.find("/", end + 1)
        return path if path in self.places else ""

    def about(self, path: str) -> str:
        """Return a mount at, above or below a path, "" where there is none."""
        below = f"{path}/"
        return self.above(path) or next((p for p in self.places if p.startswith(below)), "")


def is_read_only(root: Root) -> bool:
    """Tell whether nothing can be made in a root."""
    return bool(posix.fstatvfs(root.fd).f_flag & ST_RDONLY)


def is_engines(root: Root, bundle: str, kernel: Kernel) -> bool:
    """Tell whether a container's root was made for it alone: what is written there is its own.

    Podman's `--rootfs DIR`, a link to a shared tree or a folder of the host is somebody else's.
    Proof is where the root really is, links resolved, and what the engine made there:

    - BUNDLE/rootfs, a folder of the bundle or what is mounted on it (`_is_bundles`);
    - a mount of its own that is named after the container's id (Docker with containerd's image
      store, Podman's `--rootfs DIR:O`);
    - a layer in the store of Docker, Podman or CRI-O that the store keeps for this container.

    Args:
        root: the container's.
        bundle: the bundle's folder.
        kernel: what tells mounts apart.
    """
    try:
        folder = posix.open(bundle, posix.O_PATH | posix.O_DIRECTORY)
    except (OSError, ValueError):
        return False
    try:
        place, home = _real(root.fd), _real(folder).rstrip("/")
        if place == f"{home}/rootfs":
            return _is_bundles(root.fd, folder, kernel)
    finally:
        posix.close(folder)
    parts = home.rsplit("/", 2)
    container = parts[-2] if parts[-1] == USERDATA else parts[-1]
    if len(container) != ID_LENGTH or container.strip("0123456789abcdef"):
        return False
    names = place.split("/")
    if container in names and _is_mount_point(root.fd, kernel):
        return True
    if len(names) < STORED_DEPTH:
        return False
    store, driver, layers = "/".join(names[:-3]), names[-3], names[-2:]
    return _is_there(f"{store}/containers/{container}") or _keeps(
        f"{store}/{driver}-containers", container, layers
    )


def _real(fd: int) -> str:
    return posix.readlink(f"/proc/self/fd/{fd}")


def _is_mount_point(fd: int, kernel: Kernel) -> bool:
    parent = posix.open("..", posix.O_PATH | posix.O_DIRECTORY, dir_fd=fd)
    try:
        return kernel.mount_id(parent) != kernel.mount_id(fd)
    finally:
        posix.close(parent)


def _is_bundles(fd: int, bundle: int, kernel: Kernel) -> bool:
    """Tell whether BUNDLE/rootfs is a folder of the bundle, or a mount that nobody else uses.

    A bind mount there may show a tree that others use. containerd, which mounts one for some of
    its snapshotters, leaves a link `work` in its bundles (runtime/v2/bundle.go).
    """
    number, around = kernel.mount_id(fd), kernel.mount_id(bundle)
    if number == around:
        return True
    home = _real(bundle)
    try:
        if posix.readlink("work", dir_fd=bundle).split("/")[-2:] == home.split("/")[-2:]:
            return True
    except OSError:
        pass
    from nvct.linux.files import read_bytes
    from nvct.linux.mountinfo import Mount

    text = read_bytes("/proc/self/mountinfo", MOUNTINFO_LIMIT).decode("utf-8", "surrogateescape")
    lines = {line.partition(" ")[0]: line for line in text.split("\n")}
    top, below = (lines.get(mount.decode().strip()) for mount in (number, around))
    return bool(top and below) and _is_whole(Mount(top or ""), Mount(below or ""), _real(fd))


def _is_whole(top: Mount, below: Mount, place: str) -> bool:
    """Tell whether a mount is an overlay that can be written to, or shows what it covers."""
    if top.target != place:
        return False
    if any(option.startswith("upperdir=") for option in top.super_options):
        return top.root == "/"
    covered = below.root.rstrip("/") + place[len(below.target.rstrip("/")) :]
    return (top.root, top.major, top.minor) == (covered, below.major, below.minor)


def _is_there(path: str) -> bool:
    try:
        return posix.lstat(path).st_mode & S_IFMT == S_IFDIR
    except (OSError, ValueError):
        return False


def _keeps(folder: str, container: str, layers: list[str]) -> bool:
    """Tell whether a store of containers/storage keeps one of these layers for a container.

    With `--rootfs` Podman registers a container as well, with an empty layer that is not the root.
    """
    from nvct.linux.files import read_bytes

    for name in ("containers.json", "volatile-containers.json"):
        try:
            data = read_bytes(f"{folder}/{name}", STORE_LIMIT)
        except (OSError, NvctError):
            continue
        start = data.find(f'"id":"{container}"'.encode())
        if start >= 0:
            record = data[start + 1 :].partition(b'"id":"')[0]
            layer = record.partition(b'"layer":"')[2].partition(b'"')[0]
            return layer.decode("ascii", "replace") in layers
    return False


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
