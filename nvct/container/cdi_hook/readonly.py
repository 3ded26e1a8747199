# SPDX-License-Identifier: Apache-2.0
"""A read-only root that a hook has to write to, as `root.readonly` makes it.

runc makes the root read-only after the createContainer hooks, crun (1.8.1) before them. So that a
hook does the same under both, it takes a mount namespace of its own and allows writing in there:
the container's own mount stays read-only all the time. Only what the runtime itself closed is
opened: a root that was read-only before, on the host, stays so.
"""

from __future__ import annotations

import posix

from nvct.errors import HostError
from nvct.linux import constants as c
from nvct.linux.root import Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.linux.kernel import Kernel

# statvfs(3); a bind remount without the others would take them away.
ST_RDONLY, ST_NOSUID, ST_NODEV, ST_NOEXEC, ST_NOSYMFOLLOW = 1, 2, 4, 8, 0x2000
KEPT = (
    (ST_NOSUID, c.MS_NOSUID),
    (ST_NODEV, c.MS_NODEV),
    (ST_NOEXEC, c.MS_NOEXEC),
    (ST_NOSYMFOLLOW, c.MS_NOSYMFOLLOW),
)
MOUNTINFO_LIMIT = 16 << 20


def is_read_only(root: Root) -> bool:
    """Tell whether nothing can be written through this mount of the root."""
    return bool(posix.fstatvfs(root.fd).f_flag & ST_RDONLY)


def writable(root: Root, proc_root: str, kernel: Kernel) -> Root:
    """Return the root as it can be written to, in a mount namespace that this process enters.

    It leaves the container's mount namespace by that: what is to be mounted there comes before.
    The working directory becomes the root, too. A root that was closed by somebody else than the
    runtime is returned as it is.

    Raises:
        HostError: the kernel refused.
    """
    if not _is_closed_by_runtime(root, proc_root, kernel):
        return root
    flags = c.MS_REMOUNT | c.MS_BIND
    held = posix.fstatvfs(root.fd).f_flag
    for shown, flag in KEPT:
        if held & shown:
            flags |= flag
    try:
        kernel.fchdir(root.fd)
        kernel.unshare(c.CLONE_NEWNS)  # the working directory comes along, as the copied mount's
        kernel.mount(None, ".", None, flags)
        fd = posix.open(".", posix.O_PATH | posix.O_DIRECTORY)
    except OSError as error:
        raise HostError(
            f"{root.label}'s read-only root cannot be written to by a hook: {error.strerror}",
            hint="it needs CAP_SYS_ADMIN; or start the container without a read-only root",
        ) from error
    return Root(fd, root.label)


def _is_closed_by_runtime(root: Root, proc_root: str, kernel: Kernel) -> bool:
    """Tell whether the root is a read-only mount on top of what can be written to."""
    from nvct.linux.files import read_bytes
    from nvct.linux.mountinfo import Mount

    text = read_bytes(f"{proc_root}/self/mountinfo", MOUNTINFO_LIMIT).decode(
        "utf-8", "surrogateescape"
    )
    by_id = {line.partition(" ")[0]: line for line in text.split("\n") if line}

    def mount(number: str) -> Mount | None:
        line = by_id.get(number)
        return None if line is None else Mount(line)

    top = mount(kernel.mount_id(root.fd).decode().strip())
    if top is None or top.target != posix.readlink(f"{proc_root}/self/fd/{root.fd}"):
        return False  # the runtime mounted no root of its own
    below = mount(str(top.parent_id))
    return below is not None and "ro" not in below.options
