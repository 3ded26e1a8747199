# SPDX-License-Identifier: Apache-2.0
"""Hook update-application-profile: tell EGL which GPUs the container has.

Writes what nvidia-container-toolkit v1.20 writes: a bit for each /dev/nvidiaN by its minor, as a
hexadecimal number, which is no JSON but what the driver reads.
"""

from __future__ import annotations

import posix

from nvct.linux.constants import S_IFCHR, S_IFMT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.hook.context import Context
    from nvct.linux.root import Root

FOLDER = "/etc/nvidia/nvidia-application-profiles-rc.d"
FILE = "10-container.conf"
DEVICE = "nvidia"
MINORS = 64
DEVICE_LIMIT = 100_000


def run(context: Context) -> None:
    """Write the profile; a container without GPU nodes stays as it is."""
    root = context.root()
    mask = 0
    for minor in gpu_minors(root):
        if minor < MINORS:
            mask |= 1 << minor
        else:
            context.warn(f"GPU with minor {minor} is left out of the application profile")
    if not mask:
        return
    kernel = context.kernel
    parent = FOLDER.rpartition("/")[0]
    kernel.close(root.dir_fd(parent, create=True, kernel=kernel))
    kernel.close(root.dir_fd(FOLDER, create=True, mode=0o555, kernel=kernel))
    path = f"{FOLDER}/{FILE}"
    data = render(mask)
    if root.read_file(path) != data:
        root.write_file(path, data, mode=0o444, kernel=kernel)


def gpu_minors(root: Root) -> list[int]:
    """Return the minors of the GPU nodes in the container's /dev."""
    minors = set()
    for name in root.listdir("/dev", DEVICE_LIMIT) or ():
        number = name[len(DEVICE) :]
        if name.startswith(DEVICE) and number.isascii() and number.isdecimal():
            found = root.lstat(f"/dev/{name}")
            if found is not None and found.st_mode & S_IFMT == S_IFCHR:
                minors.add(posix.minor(found.st_rdev))
    return sorted(minors)


def render(mask: int) -> bytes:
    """Return the profile that makes the GPUs of a mask visible to EGL."""
    text = (
        '{"profiles":[{"name":"_container_","settings":'
        f'["EGLVisibleDGPUDevices",{mask:#x}]}}],'
        '"rules":[{"pattern":[],"profile":"_container_"}]}'
    )
    return text.encode()
