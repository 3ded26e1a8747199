# SPDX-License-Identifier: Apache-2.0
"""Leaves the mounts of a container alone: a volume has other users.

Contract: reads only; the caller writes the changes that are left.
"""

from __future__ import annotations

from nvct.errors import UnsafePathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.container.rootfs.changes import Changes
    from nvct.container.rootfs.libraries import MountTargets


def leave(changes: Changes, mounts: MountTargets, warn: Callable[[str], None]) -> None:
    """Drop the changes at or below a mount, with a warning for each folder.

    Args:
        changes: of the container's root.
        mounts: of the container.
        warn: receives the warnings.
    """
    root = changes.root
    left: dict[str, None] = {}
    real: dict[str, str] = {}

    def is_own(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        try:
            if folder not in real:
                real[folder] = root.real(folder or "/").rstrip("/")
        except UnsafePathError:
            return True  # nothing can be written there
        if mounts.is_covered(real[folder] or "/"):
            left[folder] = None
        elif mounts.is_covered(f"{real[folder]}/{name}"):
            left[path] = None
        return folder not in left and path not in left

    changes.files = [file for file in changes.files if is_own(file[0])]
    changes.links = [link for link in changes.links if is_own(link[1])]
    changes.removed = [path for path in changes.removed if is_own(path)]
    changes.sealed = [(path, mode) for path, mode in changes.sealed if is_own(f"{path}/")]
    for path in left:
        warn(f"{path} is a mount in the container: nothing of the driver is put there")
