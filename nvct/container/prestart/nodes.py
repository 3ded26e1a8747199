# SPDX-License-Identifier: Apache-2.0
"""Device nodes in a container's live /dev.

They are created with mknod(2). In a user namespace new nodes do not work, so the host's nodes are
bind-mounted. An existing node with the same numbers is not changed: /dev may be the host's own.
"""

from __future__ import annotations

import posix

from nvct.container.prestart.mounts import Tree
from nvct.errors import HostError, RequestError, UnsafePathError
from nvct.linux import constants as c
from nvct.linux.device_nodes import node as host_node
from nvct.linux.files import discard, lstat_or_none, split, temporary_name
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvct.container.plan.model import Edits
    from nvct.linux.kernel import Kernel
    from nvct.linux.root import Root

DEFAULT_MODE = 0o666
ST_NODEV = 4
BOUND = c.MOUNT_ATTR_NOSUID | c.MOUNT_ATTR_NOEXEC


class Node:
    """A device node of the container.

    Attributes:
        path: in the container.
        device: its device number (dev_t).
        mode: its permissions.
        uid, gid: its owner.
    """

    __slots__ = ("device", "gid", "host", "mode", "path", "uid")

    def __init__(self, text: str, uid: int, gid: int, host: str = "") -> None:
        """Read an entry for linux.devices; missing owners are those of the container's process.

        `host` is the path of the host's node, "" if the plan has none.

        Raises:
            RequestError: the node is not a character device.
        """
        entry: dict[str, Any] = jsontext.parse(text, "a plan")  # type: ignore[assignment]  # our compiler's
        self.path: str = entry["path"]
        self.host = host
        if entry["type"] not in ("c", "u"):
            raise RequestError(f"{self.path} is no character device; a hook makes no other node")
        self.device = posix.makedev(entry["major"], entry["minor"])
        self.mode: int = entry.get("fileMode", DEFAULT_MODE) & 0o777
        self.uid: int = entry.get("uid", uid)
        self.gid: int = entry.get("gid", gid)

    @property
    def numbers(self) -> str:
        """The device number as MAJOR:MINOR."""
        return f"{posix.major(self.device)}:{posix.minor(self.device)}"

    def make(self, root: Root, kernel: Kernel) -> None:
        """Create the node under a temporary name, then rename it.

        Raises:
            UnsafePathError: the path is a directory.
            HostError: the node cannot be created, or the folder is mounted nodev.
        """
        parent, name = split(self.path)
        folder = root.dir_fd(parent, create=True, kernel=kernel)
        try:
            status = lstat_or_none(name, folder)
            kind = status.st_mode & c.S_IFMT if status else 0
            if status and kind == c.S_IFCHR and status.st_rdev == self.device:
                return
            if kind == c.S_IFDIR:
                raise UnsafePathError(f"{self.path} in the container is a directory")
            if posix.fstatvfs(folder).f_flag & ST_NODEV:
                raise HostError(f"{parent} in the container is mounted nodev: no GPU works there")
            self._make(name, folder, kernel)
        except OSError as error:
            raise HostError(
                f"cannot make {self.path} ({self.numbers}) in the container: {error.strerror}"
            ) from error
        finally:
            posix.close(folder)

    def _make(self, name: str, folder: int, kernel: Kernel) -> None:
        temporary = temporary_name()
        kernel.mknod(temporary, c.S_IFCHR | 0o600, self.device, dir_fd=folder)
        try:
            kernel.lchown(temporary, self.uid, self.gid, dir_fd=folder)
            kernel.chmod(temporary, self.mode, dir_fd=folder)  # mknod applies the umask
            kernel.rename(temporary, name, source_dir_fd=folder, target_dir_fd=folder)
        except BaseException:
            discard(temporary, folder, kernel)
            raise

    def take(self, dev_root: str, kernel: Kernel) -> Tree:
        """Return a mount of the host's node for the container.

        Args:
            dev_root: the folder that contains the host's /dev.
            kernel: system calls that clone the mount.

        Raises:
            HostError: the host does not have the node, or it has another device number.
        """
        path = self.host or dev_root.rstrip("/") + self.path
        host_device = host_node(path)
        if host_device is None or posix.makedev(*host_device[:2]) != self.device:
            raise HostError(
                f"{path} is not the device {self.numbers} that a user namespace is to get",
                hint="nvidia-ctk system create-device-nodes makes it",
            )
        return Tree(path, self.path, BOUND, kernel, recursive=False)


def collect(edits: list[Edits], uid: int, gid: int) -> list[Node]:
    """Return the nodes of edits; the last node of a path counts.

    Raises:
        RequestError: a node is not a character device.
    """
    nodes_by_path = {node["path"]: node for edit in edits for node in edit["nodes"]}
    return [Node(n["node"], uid, gid, n.get("host", "")) for n in nodes_by_path.values()]
