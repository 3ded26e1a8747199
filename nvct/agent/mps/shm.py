# SPDX-License-Identifier: Apache-2.0
"""Mounts the tmpfs that pods that share by MPS write to, so that they cannot fill a disk.

Containers get a folder of the host at /dev/shm. For shared resources, that is /mps/shm, a tmpfs of
half the memory. The folder of each claim or resource, with pipes and logs, is a tmpfs of its own.
HostError if a mount or a folder cannot be made.
"""

from __future__ import annotations

import contextlib
import os
import threading

from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.place import CONTAINER_FOLDER, SHM, Place
from nvct.errors import HostError, OSErrorsAs
from nvct.host import procfs
from nvct.linux import mountinfo
from nvct.linux.constants import MS_NODEV, MS_NOEXEC, MS_NOSUID

PATH = f"{CONTAINER_FOLDER}/{SHM}"
FALLBACK_KIB = 65536
FILES = 65536  # In the shared memory of all resources; a file takes a KiB of the kernel's memory
CLAIM_PART, CLAIM_FILES = 8, 16384
"""A claim has an eighth of the shared memory: a node has 8 GPUs, and each goes to one claim."""
RESOURCE_KIB, RESOURCE_FILES = 16384, 1024  # For pipes and logs
LOCK = threading.Lock()
MS_RELATIME = 1 << 21
FLAGS = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME
MNT_DETACH = 2


def mount(path: str = PATH) -> None:
    """Mount the shared memory of all resources, in place of an older mount."""
    with contextlib.suppress(OSError):  # there is no mount
        unmount(path)
    _mount(path, 0o1777, size_kib(), FILES)


def make_folders(place: Place, daemon: Daemon) -> str:
    """Make a daemon's folders; return the one of a claim's own shared memory, "" for a resource.

    Folders that exist stay as they are: running pods have them mounted.
    """
    folder, common = f"{place.folder}/{daemon.resource}", f"{place.folder}/{SHM}"
    own = place.shm(daemon.resource) if daemon.is_of_claim else ""
    is_seen = place.is_private and _is_seen_by_host(place.folder)
    if place.is_private and not is_seen and (own or not os.path.isdir(common)):
        raise HostError(
            f"a mount in {place.folder} does not reach the host, so pods could fill its disk",
            hint="set mountPropagation: Bidirectional for the folder of MPS",
        )
    if is_seen:
        of_pods = (RESOURCE_KIB, RESOURCE_FILES)
        if own:
            of_pods = (size_kib() // CLAIM_PART, CLAIM_FILES)
        with LOCK:
            _mount_once(folder, 0o755, *of_pods)
            _mount_once(common, 0o1777, size_kib(), FILES)
    try:
        for path in place.folders(daemon.resource):
            os.makedirs(path, 0o755, exist_ok=True)
        for path in filter(None, (common, own)):
            if not os.path.isdir(path):
                os.makedirs(path, exist_ok=True)
                os.chmod(path, 0o1777)  # noqa: S103 - as /dev/shm
    except OSError as error:
        raise HostError(f"{error.filename} cannot be made: {error.strerror}") from error
    return own


def unmount(path: str) -> None:
    """Unmount a folder for new pods, while running pods keep it; OSError if that fails."""
    from nvct.linux.kernel import KERNEL

    KERNEL.umount2(path, MNT_DETACH)


def _mount_once(path: str, mode: int, size: int, files: int) -> None:
    """Mount a tmpfs, unless there is one, or the folder is not empty."""
    try:
        in_use = bool(os.listdir(path))
    except OSError:
        in_use = False
    if not in_use and not os.path.ismount(path):
        _mount(path, mode, size, files)


def _mount(path: str, mode: int, size: int, files: int) -> None:
    from nvct.linux.kernel import KERNEL

    with OSErrorsAs(
        HostError,
        f"cannot mount {path}",
        hint="the container must be privileged, and have the folder of MPS at /mps",
    ):
        os.makedirs(path, 0o755, exist_ok=True)
        options = f"mode={mode:o},size={size}k,nr_inodes={files}"
        KERNEL.mount("shm", path, "tmpfs", FLAGS, options)


def _is_seen_by_host(folder: str) -> bool:
    """Return whether a mount in a folder reaches the host: a container's volume must be shared."""
    if folder != CONTAINER_FOLDER:
        return True
    mounts = mountinfo.parse(procfs.read_text("/proc/self/mountinfo") or "")
    tags = [mount.tags for mount in mounts if mount.target == folder]
    return bool(tags) and any(tag.startswith("shared:") for tag in tags[-1])


def size_kib(meminfo: str = "/proc/meminfo") -> int:
    """Return half of the machine's memory in KiB."""
    for line in (procfs.read_text(meminfo) or "").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if name == "MemTotal" and number and number[0].isdigit():
            return int(number[0]) // 2
    return FALLBACK_KIB
