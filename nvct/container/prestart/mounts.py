# SPDX-License-Identifier: Apache-2.0
"""Mounts host files in a container's live mount namespace.

In the host's namespace each mount is cloned as a detached mount and made read-only and private.
The clone is then attached in the container to a descriptor of the target. So no path of the
container is used twice, and the container can never write through the mount. Kernels before 5.12
cannot change a detached mount: mount(2) on the descriptors binds it in the container and makes it
read-only, and the result is checked.
"""

from __future__ import annotations

import errno
import posix

from nvct.errors import HostError, RequestError, UnsafePathError
from nvct.linux import constants as c
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import stat_result
    from typing import Any

    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root

RESTRICTIONS = {
    "ro": c.MOUNT_ATTR_RDONLY,
    "nosuid": c.MOUNT_ATTR_NOSUID,
    "nodev": c.MOUNT_ATTR_NODEV,
    "noexec": c.MOUNT_ATTR_NOEXEC,
}
"""As mount_setattr(2) numbers them; MS_RDONLY and its neighbors have the same numbers."""
BIND = ("", "none", "bind")


class Tree:
    """A mount of a host file or folder; HostError if there is none, or it cannot be cloned."""

    __slots__ = ("_recursive", "destination", "fd", "restrictions", "source", "status")

    def __init__(
        self, source: str, destination: str, restrictions: int, kernel: Kernel, *, recursive: bool
    ) -> None:
        self.source = source
        self.destination = destination
        self.restrictions = restrictions  # MOUNT_ATTR_* bits
        self._recursive = c.AT_RECURSIVE if recursive else 0
        self.fd = -1  # detached mount of the source, -1 if the kernel is too old
        try:
            self.status: stat_result = posix.stat(source)
            self._take(kernel)
        except OSError as error:
            self.close()
            raise HostError(
                f"cannot mount {source}: {error.strerror}",
                hint="is the driver being installed or removed? try again",
            ) from error

    def _take(self, kernel: Kernel) -> None:
        flags = c.OPEN_TREE_CLONE | self._recursive
        try:
            self.fd = kernel.open_tree(c.AT_FDCWD, self.source, flags)
            self.status = posix.fstat(self.fd)
            kernel.mount_setattr(
                self.fd, "", c.AT_EMPTY_PATH | self._recursive,
                attr_set=self.restrictions, propagation=c.MS_PRIVATE,
            )  # fmt: skip
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            self.close()

    @property
    def is_folder(self) -> bool:
        """Whether the source is a directory."""
        return self.status.st_mode & c.S_IFMT == c.S_IFDIR

    def close(self) -> None:
        """Close the detached mount; the kernel removes it unless it was attached."""
        if self.fd >= 0:
            posix.close(self.fd)
            self.fd = -1

    def attach(self, root: Root, kernel: Kernel) -> None:
        """Attach the mount in the container that was entered; UnsafePathError, HostError."""
        target = _target(root, self.destination, folder=self.is_folder, kernel=kernel)
        try:
            if self.fd >= 0:
                flags = c.MOVE_MOUNT_F_EMPTY_PATH | c.MOVE_MOUNT_T_EMPTY_PATH
                kernel.move_mount(self.fd, "", target, "", flags)
            else:
                self._bind(root, target, kernel)
        except OSError as error:
            raise HostError(
                f"cannot mount {self.source} over {self.destination} in the container:"
                f" {error.strerror}"
            ) from error
        finally:
            posix.close(target)
        self._check(root)

    def _bind(self, root: Root, target: int, kernel: Kernel) -> None:
        """Bind with mount(2): the host's tree stays visible until the runtime calls pivot_root."""
        recursive = c.MS_REC if self._recursive else 0
        mount_point = f"/proc/self/fd/{target}"
        kernel.mount(self.source, mount_point, None, c.MS_BIND | recursive)
        top_fd = self._top(root)
        try:
            mount_point = f"/proc/self/fd/{top_fd}"
            kernel.mount(None, mount_point, None, c.MS_PRIVATE | recursive)
            kernel.mount(None, mount_point, None, c.MS_REMOUNT | c.MS_BIND | self.restrictions)
        finally:
            posix.close(top_fd)

    def _top(self, root: Root) -> int:
        fd = root.path_fd(self.destination)
        if fd is None:
            raise UnsafePathError(f"{self.destination} in the container vanished")
        return fd

    def _check(self, root: Root) -> None:
        """Check that the destination shows the source, with all restrictions."""
        fd = self._top(root)
        try:
            status = posix.fstat(fd)
            if (status.st_dev, status.st_ino) != (self.status.st_dev, self.status.st_ino):
                raise UnsafePathError(
                    f"{self.destination} in the container changed while it was mounted over"
                )
            if self.restrictions & ~posix.fstatvfs(fd).f_flag:
                raise HostError(
                    f"the mount over {self.destination} lacks options such as read-only"
                )
        finally:
            posix.close(fd)


def take(mounts: list[list[str]], kernel: Kernel) -> list[Tree]:
    """Clone the sources of the mounts of compiled edits; the last mount of a destination counts.

    Raises HostError if a source cannot be cloned, and RequestError if a mount is not a bind mount.
    """
    trees: list[Tree] = []
    try:
        for destination, text in dict(mounts).items():
            trees.append(_tree(destination, text, kernel))
    except BaseException:
        close(trees)
        raise
    trees.sort(key=lambda tree: tree.destination.count("/"))
    return trees


def _tree(destination: str, text: str, kernel: Kernel) -> Tree:
    mount: dict[str, Any] = jsontext.parse(text, "a plan")  # type: ignore[assignment]  # our compiler's
    words = mount.get("options", [])
    if mount.get("type", "") not in BIND and "bind" not in words and "rbind" not in words:
        raise RequestError(
            f"{destination} is a mount of type {mount['type']}, which hooks cannot make"
        )
    bits = 0
    for word in words:
        bits |= RESTRICTIONS.get(word, 0)
    return Tree(mount["source"], destination, bits, kernel, recursive="rbind" in words)


def close(trees: list[Tree]) -> None:
    """Close the detached mounts."""
    for tree in trees:
        tree.close()


def _target(root: Root, path: str, *, folder: bool, kernel: Kernel) -> int:
    """Return a descriptor of a mount point of the right type; create it if it is missing."""
    fd = root.path_fd(path, write=True)
    if fd is None:
        if folder:
            fd = root.dir_fd(path, create=True, kernel=kernel)
        else:
            root.write_file(path, b"", kernel=kernel)  # may replace a dangling link
            fd = root.path_fd(path, follow=False, write=True)
    if fd is None:
        raise UnsafePathError(f"{path} in the container vanished")
    kind = posix.fstat(fd).st_mode & c.S_IFMT
    if (kind == c.S_IFDIR) != folder or kind == c.S_IFLNK:
        posix.close(fd)
        problem = "is not a directory" if folder else "is a directory or changes"
        raise UnsafePathError(f"{path} in the container {problem}")
    return fd
