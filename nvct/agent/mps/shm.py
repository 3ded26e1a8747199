# SPDX-License-Identifier: Apache-2.0
"""The shared memory of MPS clients and servers: a tmpfs at /mps/shm, of half the memory."""

from __future__ import annotations

import contextlib
import os

from nvct.agent.mps.place import CONTAINER_FOLDER, SHM
from nvct.errors import HostError
from nvct.host import procfs
from nvct.linux.constants import MS_NODEV, MS_NOEXEC, MS_NOSUID

PATH = f"{CONTAINER_FOLDER}/{SHM}"
FALLBACK_KIB = 65536
MS_RELATIME = 1 << 21
MNT_DETACH = 2


def mount(path: str = PATH) -> None:
    """Mount it, in place of an older one.

    Raises:
        HostError: it cannot be mounted.
    """
    from nvct.kernel.calls import KERNEL

    try:
        with contextlib.suppress(OSError):  # no mount is there
            KERNEL.umount2(path, MNT_DETACH)
        os.makedirs(path, 0o755, exist_ok=True)
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME
        KERNEL.mount("shm", path, "tmpfs", flags, f"size={size_kib()}k")
    except OSError as error:
        raise HostError(
            f"cannot mount {path}: {error.strerror}",
            hint="the container must be privileged, and have the folder of MPS at /mps",
        ) from error


def size_kib(meminfo: str = "/proc/meminfo") -> int:
    """Return half of the machine's memory in KiB."""
    for line in (procfs.read_text(meminfo) or "").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if name == "MemTotal" and number and number[0].isdigit():
            return int(number[0]) // 2
    return FALLBACK_KIB
