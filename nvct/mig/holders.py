# SPDX-License-Identifier: Apache-2.0
"""Finds the processes that have a GPU or MIG device open, by their open files in /proc.

The holder of a GPU without MIG has /dev/nvidiaN open, that of a MIG device the capability file of
its instance (/dev/nvidia-caps/nvidia-capM). Device numbers are compared, not names, because a
container has device nodes of its own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from nvct.host import procfs
from nvct.host.gpu.nodes import cap_minors, mig_minors
from nvct.host.nvml.mig_model import MigGpu
from nvct.host.roots import Roots

UNIT = re.compile(r"/([^/\n]+\.service)(?:/|$)", re.MULTILINE)
POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has a device open."""

    pid: int
    command: str
    container: str
    pod: str
    unit: str
    device: str  # the open device, e.g. "GPU 0" or "GPU 0, instance 1/0"
    # UUID of the GPU, ids of GPU and compute instance; None for the GPU itself
    instance: tuple[str, int, int] | None = None

    def __str__(self) -> str:
        """Return a text such as "process 42 (python3, container 1234567890ab) holds GPU 0"."""
        parts = [self.command]
        if self.pod:
            parts.append(f"pod {self.pod}")
        if self.container:
            parts.append(f"container {self.container[:12]}")
        elif self.unit:
            parts.append(f"unit {self.unit}")
        return f"process {self.pid} ({', '.join(parts)}) holds {self.device}"


def holders(
    roots: Roots,
    gpus: Iterable[MigGpu],
    instances: Collection[tuple[str, int, int]] | None = None,
    ignore: Collection[int] = (),
) -> list[Holder]:
    """Return the processes that have these GPUs open.

    `instances` (GPU's UUID, GPU instance, compute instance) limits this to these MIG devices; None
    stands for the GPUs themselves and all their MIG devices.
    """
    wanted = device_numbers(roots, gpus, instances)
    return [
        _holder(roots, pid, *wanted[number])
        for pid in procfs.processes(roots.proc)
        if pid not in ignore
        for number in sorted(set(_open_devices(roots, pid)) & wanted.keys())
    ]


def holders_of(roots: Roots, number: tuple[int, int], name: str) -> list[Holder]:
    """Return the processes, except this one and its descendants, that have a device open."""
    own = own_processes(roots)
    return [
        _holder(roots, pid, name, None)
        for pid in procfs.processes(roots.proc)
        if pid not in own and number in _open_devices(roots, pid)
    ]


def own_processes(roots: Roots) -> set[int]:
    """Return the numbers of this process and its descendants in this /proc."""
    try:
        own = int(os.readlink(f"{roots.proc}/self"))
    except (OSError, ValueError):
        return {os.getpid()}
    processes = procfs.processes(roots.proc)
    parents = {pid: procfs.parent(f"{roots.proc}/{pid}") for pid in processes}
    family = {own}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def device_numbers(
    roots: Roots, gpus: Iterable[MigGpu], instances: Collection[tuple[str, int, int]] | None
) -> dict[tuple[int, int], tuple[str, tuple[str, int, int] | None]]:
    """Return the names of the devices to look for, by device numbers."""
    majors = procfs.majors(roots)
    gpu_major, cap_major = majors.get("nvidia", 195), majors.get("nvidia-caps", -1)
    table = mig_minors(roots)
    wanted: dict[tuple[int, int], tuple[str, tuple[str, int, int] | None]] = {}
    for gpu in gpus:
        if instances is None:
            wanted[gpu_major, gpu.minor] = f"GPU {gpu.index}", None
        for gi in gpu.instances:
            for ci in gi.compute:
                pair = cap_minors(roots, table, gpu.minor, gi.id, ci.id)
                key = (gpu.uuid, gi.id, ci.id)
                if pair and (instances is None or key in instances):
                    name = f"GPU {gpu.index}, instance {gi.id}/{ci.id}"
                    wanted[cap_major, pair[1]] = name, key
    return wanted


def _open_devices(roots: Roots, pid: int) -> Iterator[tuple[int, int]]:
    folder = f"{procfs.folder_of_live_thread(roots.proc, pid)}/fd"
    for name in procfs.list_directory(folder):
        try:
            status = os.stat(f"{folder}/{name}")
        except OSError:
            continue  # closed meanwhile
        if stat.S_ISCHR(status.st_mode):
            yield os.major(status.st_rdev), os.minor(status.st_rdev)


def _holder(roots: Roots, pid: int, device: str, instance: tuple[str, int, int] | None) -> Holder:
    folder = f"{roots.proc}/{pid}"
    cgroup = procfs.read_text(f"{folder}/cgroup") or ""
    container, unit, pod = (p.search(cgroup) for p in (procfs.CONTAINER_ID, UNIT, POD))
    return Holder(
        pid=pid,
        command=(procfs.read_text(f"{folder}/comm") or "?").strip(),
        container=container[1] if container else "",
        pod=pod[1].replace("_", "-") if pod else "",
        unit=unit[1] if unit else "",
        device=device,
        instance=instance,
    )
