# SPDX-License-Identifier: Apache-2.0
"""Mount points in a container's root, before the container starts.

The mounts of config.json do not exist yet, so the container will see other files below them.
Contract: reads only.
"""

from __future__ import annotations

import posix

from nvct.errors import NvctError, UnsafePathError
from nvct.linux.constants import S_IFDIR, S_IFMT, ST_RDONLY
from nvct.oci.bundle import clean, mount_target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.linux.kernel import Kernel
    from nvct.linux.mountinfo import Mount
    from nvct.linux.root import Root

SYSTEM = ("/proc", "/sys", "/dev")
"""Engines mount here; destinations below these are not resolved in the image."""
USERDATA = "userdata"
"""The name of bundles of Podman and CRI-O, in a folder named after the container."""
ID_LENGTH = 64
STORED_DEPTH = 5
"""Parts of STORE/overlay/LAYER/merged, STORE/vfs/dir/LAYER or STORE/btrfs/subvolumes/LAYER."""
STORE_LIMIT = 16 << 20
NAME_LIMIT = 4096


class ConfigMounts:
    """The destinations of the mounts in config.json."""

    __slots__ = ("targets",)

    def __init__(self, root: Root, destinations: Iterable[str]) -> None:
        """Resolve destinations in the image: runtimes follow links before `..`, not after."""
        targets: dict[str, None] = {}
        for destination in destinations:
            target = mount_target(destination)
            targets[target] = None
            if not f"{target}/".startswith(tuple([f"{folder}/" for folder in SYSTEM])):
                try:
                    targets[root.real(target)] = None
                    if ".." in destination:
                        targets[clean(root.real(f"/{destination}"))] = None
                except UnsafePathError:
                    continue  # the runtime will refuse it
        self.targets = targets  # destinations in order, both as written and resolved in the image

    def above(self, path: str) -> str:
        """Return the outermost mount at a path or above it, "" if there is none."""
        end = 0
        while end >= 0:
            if (path[:end] or "/") in self.targets:
                return path[:end] or "/"
            end = path.find("/", end + 1)
        return path if path in self.targets else ""

    def about(self, path: str) -> str:
        """Return a mount at, above or below a path, "" if there is none."""
        below = f"{path}/"
        return self.above(path) or next((t for t in self.targets if t.startswith(below)), "")


def is_read_only(root: Root) -> bool:
    """Report whether a root is mounted read-only."""
    return bool(posix.fstatvfs(root.fd).f_flag & ST_RDONLY)


def is_private(root: Root, bundle: str, kernel: Kernel) -> bool:
    """Report whether the engine made a container's root for this container alone.

    Podman's `--rootfs DIR`, a link to a shared tree and a folder of the host are not private. The
    resolved path of the root must be one of these:

    - BUNDLE/rootfs, a folder of the bundle or a mount on it (`_is_of_bundle`);
    - a mount point named after the container's id (Docker with containerd's image store, Podman's
      `--rootfs DIR:O`);
    - a layer that the store of Docker, Podman or CRI-O keeps for this container.
    """
    try:
        folder = posix.open(bundle, posix.O_PATH | posix.O_DIRECTORY)
    except (OSError, ValueError):
        return False
    try:
        path, bundle_path = _resolved(root.fd), _resolved(folder).rstrip("/")
        if path == f"{bundle_path}/rootfs":
            return _is_of_bundle(root.fd, folder, kernel)
    finally:
        posix.close(folder)
    parts = bundle_path.rsplit("/", 2)
    container = parts[-2] if parts[-1] == USERDATA else parts[-1]
    if len(container) != ID_LENGTH or container.strip("0123456789abcdef"):
        return False
    names = path.split("/")
    if container in names and _is_mount_point(root.fd, kernel):
        return True
    if len(names) < STORED_DEPTH:
        return False
    store, driver, layers = "/".join(names[:-3]), names[-3], names[-2:]
    return _is_directory(f"{store}/containers/{container}") or _keeps(
        f"{store}/{driver}-containers", container, layers
    )


def _resolved(fd: int) -> str:
    return posix.readlink(f"/proc/self/fd/{fd}")


def _is_mount_point(fd: int, kernel: Kernel) -> bool:
    parent = posix.open("..", posix.O_PATH | posix.O_DIRECTORY, dir_fd=fd)
    try:
        return kernel.mount_id(parent) != kernel.mount_id(fd)
    finally:
        posix.close(parent)


def _is_of_bundle(fd: int, bundle: int, kernel: Kernel) -> bool:
    """Report whether BUNDLE/rootfs is a folder of the bundle, or a mount that nobody else uses.

    A bind mount may show a shared tree. containerd, which uses bind mounts for some snapshotters,
    has a link `work` in its bundles (runtime/v2/bundle.go).
    """
    mount, bundle_mount = kernel.mount_id(fd), kernel.mount_id(bundle)
    if mount == bundle_mount:
        return True
    path = _resolved(bundle)
    try:
        if posix.readlink("work", dir_fd=bundle).split("/")[-2:] == path.split("/")[-2:]:
            return True
    except OSError:
        pass
    from nvct.linux import mountinfo

    text = mountinfo.read()
    top, below = (mountinfo.with_id(text, m.decode().strip()) for m in (mount, bundle_mount))
    return top is not None and below is not None and _is_whole(top, below, _resolved(fd))


def _is_whole(top: Mount, below: Mount, path: str) -> bool:
    """Report whether a mount is a writable overlay, or shows the folder that it covers."""
    if top.target != path:
        return False
    if any(option.startswith("upperdir=") for option in top.super_options):
        return top.root == "/"
    covered = below.root.rstrip("/") + path[len(below.target.rstrip("/")) :]
    return (top.root, top.major, top.minor) == (covered, below.major, below.minor)


def _is_directory(path: str) -> bool:
    try:
        return posix.lstat(path).st_mode & S_IFMT == S_IFDIR
    except (OSError, ValueError):
        return False


def _keeps(folder: str, container: str, layers: list[str]) -> bool:
    """Report whether a store of containers/storage has one of the layers for a container.

    For `--rootfs`, Podman registers a container with an empty layer that is not the root.
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


def mount_point(root: Root, path: str, allowed: tuple[str, ...]) -> bool:
    """Report whether a mount point, a resolved path, exists.

    Raises UnsafePathError if the mount would hide files of the image, other than those `allowed`.
    """
    status = root.lstat(path)
    if status is None:
        return False
    if status.st_mode & S_IFMT != S_IFDIR:
        raise UnsafePathError(f"the image has a file {path}")
    names = root.listdir(path, NAME_LIMIT) or []
    if any(name not in allowed for name in names):
        raise UnsafePathError(f"the image has files in {path}")
    return True
