# SPDX-License-Identifier: Apache-2.0
"""Hook update-application-profile: lists the GPUs of the container for EGL.

`nvct.container.rootfs.profile` has the format.
"""

from __future__ import annotations

import posix

from nvct.container.cdi_hook.context import Context
from nvct.container.rootfs import profile
from nvct.container.rootfs.changes import Changes
from nvct.linux.constants import S_IFCHR, S_IFMT
from nvct.linux.root import Root

DEVICE_LIMIT = 100_000


def run(context: Context, *, leave_volumes: bool = False) -> None:
    """Write the profile if there are GPUs; with `leave_volumes`, not into a mount."""
    root = context.root()
    minors = gpu_minors(root)
    for minor in minors:
        if minor >= profile.MINORS:
            context.warn(f"GPU with minor {minor} is left out of the application profile")
    changes = Changes(root)
    profile.add(changes, minors)
    if leave_volumes:
        from nvct.container.rootfs import libraries
        from nvct.container.rootfs.libraries import MountTargets

        libraries.leave_mounts(
            changes, MountTargets.of(changes.root, context.proc_root), context.warn
        )
    changes.write(context.kernel)


def gpu_minors(root: Root) -> list[int]:
    """Return the minors of the GPU nodes in the container's /dev."""
    minors = set()
    for name in root.listdir("/dev", DEVICE_LIMIT) or ():
        if profile.is_gpu(name):
            status = root.lstat(f"/dev/{name}")
            if status is not None and status.st_mode & S_IFMT == S_IFCHR:
                minors.add(posix.minor(status.st_rdev))
    return sorted(minors)
