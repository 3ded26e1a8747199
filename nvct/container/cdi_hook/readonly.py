# SPDX-License-Identifier: Apache-2.0
"""Writes to a root that the runtime has made read-only because of `root.readonly`.

runc makes the root read-only after the createContainer hooks, crun (1.8.1) before them. To work
with both, a hook makes the root writable in a private mount namespace; the container's mount stays
read-only. This is done only if the runtime made the root read-only, not if it already was on the
host.
"""

from __future__ import annotations

import posix

from nvct.errors import HostError
from nvct.linux import constants as c
from nvct.linux.kernel import Kernel
from nvct.linux.root import Root

# A bind remount removes flags that it does not repeat; these have statvfs(3)'s values, too.
KEPT = c.MS_NOSUID | c.MS_NODEV | c.MS_NOEXEC
ST_NOSYMFOLLOW = 0x2000


def writable(root: Root, proc_root: str, kernel: Kernel) -> Root:
    """Return the root in a new mount namespace, in which it is writable.

    This process leaves the container's mount namespace, so make mounts before the call. The root
    becomes the working directory. If the runtime did not make the root read-only, it is returned
    unchanged. Raises HostError if the kernel refuses.
    """
    if not _is_closed_by_runtime(root, proc_root, kernel):
        return root
    current = posix.fstatvfs(root.fd).f_flag
    flags = c.MS_REMOUNT | c.MS_BIND | current & KEPT
    if current & ST_NOSYMFOLLOW:
        flags |= c.MS_NOSYMFOLLOW
    try:
        kernel.fchdir(root.fd)
        kernel.unshare(c.CLONE_NEWNS)  # the working directory is then in the copied mount
        kernel.mount(None, ".", None, flags)
        fd = posix.open(".", posix.O_PATH | posix.O_DIRECTORY)
    except OSError as error:
        raise HostError(
            f"a hook cannot write to the read-only root of {root.label}: {error.strerror}",
            hint="give the hook CAP_SYS_ADMIN, or start the container without a read-only root",
        ) from error
    return Root(fd, root.label)


def _is_closed_by_runtime(root: Root, proc_root: str, kernel: Kernel) -> bool:
    """Report whether the root is a read-only mount on a writable one."""
    from nvct.linux import mountinfo

    text = mountinfo.read(proc_root)
    top = mountinfo.with_id(text, kernel.mount_id(root.fd).decode().strip())
    if top is None or top.target != posix.readlink(f"{proc_root}/self/fd/{root.fd}"):
        return False  # the root is not a mount
    below = mountinfo.with_id(text, str(top.parent_id))
    return below is not None and "ro" not in below.options
