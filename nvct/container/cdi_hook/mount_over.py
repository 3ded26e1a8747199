# SPDX-License-Identifier: Apache-2.0
"""Mounts a file over a file of a container, read-only before it is attached."""

from __future__ import annotations

import errno
import posix

from nvct.errors import HostError, UnsafePathError
from nvct.linux import constants as c
from nvct.linux.kernel import Kernel
from nvct.linux.root import Root

REMOUNT = c.MS_REMOUNT | c.MS_BIND | c.MS_RDONLY | c.MS_NOSUID | c.MS_NODEV
ATTRIBUTES = c.MOUNT_ATTR_RDONLY | c.MOUNT_ATTR_NOSUID | c.MOUNT_ATTR_NODEV


def mount(kernel: Kernel, root: Root, source: str, target: int, path: str) -> None:
    """Mount one file of a container over another; HostError, UnsafePathError if one vanished."""
    fd = root.path_fd(source)
    if fd is None:
        raise UnsafePathError(f"{source} vanished")
    try:
        attach(kernel, root, fd, target, path)
    except OSError as error:
        raise HostError(f"cannot mount over {path} in the container: {error.strerror}") from error
    finally:
        posix.close(fd)


def attach(
    kernel: Kernel, root: Root, source: int, target: int, path: str, *, no_exec: bool = False
) -> None:
    """Mount a file over another, at `path` in the container; before Linux 5.12 by mount(2).

    With `no_exec` it can be neither executed nor mapped as code. Raises OSError if a call fails,
    and UnsafePathError if the target vanished.
    """
    attributes = ATTRIBUTES | (c.MOUNT_ATTR_NOEXEC if no_exec else 0)
    try:
        tree = kernel.open_tree(source, "", c.OPEN_TREE_CLONE | c.AT_EMPTY_PATH)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        attach_by_remount(kernel, root, source, target, path, no_exec=no_exec)
        return
    try:
        kernel.mount_setattr(
            tree, "", c.AT_EMPTY_PATH, attr_set=attributes, propagation=c.MS_PRIVATE
        )
        flags = c.MOVE_MOUNT_F_EMPTY_PATH | c.MOVE_MOUNT_T_EMPTY_PATH
        kernel.move_mount(tree, "", target, "", flags)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        attach_by_remount(kernel, root, source, target, path, no_exec=no_exec)
    finally:
        kernel.close(tree)


def attach_by_remount(
    kernel: Kernel, root: Root, source: int, target: int, path: str, *, no_exec: bool = False
) -> None:
    """Bind the file, then make the bind read-only, by mount(2); the rest as in `attach`."""
    kernel.mount(f"/proc/self/fd/{source}", f"/proc/self/fd/{target}", None, c.MS_BIND)
    top = root.path_fd(path)
    if top is None:
        raise UnsafePathError(f"{path} in the container vanished")
    try:
        flags = REMOUNT | (c.MS_NOEXEC if no_exec else 0)
        kernel.mount(None, f"/proc/self/fd/{top}", None, flags)
    finally:
        kernel.close(top)
