# SPDX-License-Identifier: Apache-2.0
"""The application profile that lists the GPUs of a container for EGL.

The content is that of nvidia-container-toolkit v1.20: a bit for the minor of each /dev/nvidiaN, as
a hexadecimal number. That is not JSON, but the driver accepts it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvct.container.rootfs.changes import Changes

FOLDER = "/etc/nvidia/nvidia-application-profiles-rc.d"
FILE = "10-container.conf"
PATH = f"{FOLDER}/{FILE}"
FOLDER_MODE = 0o555
DEVICE = "nvidia"
MINORS = 64


def mask_of(minors: Iterable[int]) -> int:
    """Return the bit mask of minors; minors from MINORS on are ignored."""
    mask = 0
    for minor in minors:
        if minor < MINORS:
            mask |= 1 << minor
    return mask


def is_gpu(name: str) -> bool:
    """Report whether a name in /dev is that of a GPU."""
    number = name[len(DEVICE) :]
    return name.startswith(DEVICE) and number.isascii() and number.isdecimal()


def render(mask: int) -> bytes:
    """Return the profile that makes the GPUs of a mask visible to EGL."""
    text = (
        '{"profiles":[{"name":"_container_","settings":'
        f'["EGLVisibleDGPUDevices",{mask:#x}]}}],'
        '"rules":[{"pattern":[],"profile":"_container_"}]}'
    )
    return text.encode()


def add(changes: Changes, minors: Iterable[int]) -> None:
    """Add the profile to changes if there are GPUs; UnsafePathError if its path is not a file."""
    mask = mask_of(minors)
    if mask and changes.file(PATH, changes.root.read_file(PATH), render(mask), 0o444):
        changes.sealed.append((FOLDER, FOLDER_MODE))
