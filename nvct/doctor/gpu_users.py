# SPDX-License-Identifier: Apache-2.0
"""Finds the processes and containers that use this host's GPUs, for `nvct ps`. Cold; only reads.

A process uses a device that it has open. A container has a device that is among its device nodes,
whether or not one of its processes has the device open. For a container that the NRI plugin
recorded, the record, which has a time, is used instead of /proc. Contract: a process that ends
meanwhile is left out; without root, those of other users are not seen.
"""

from __future__ import annotations

import operator
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nvct.doctor.containers import Containers
from nvct.errors import NvmlError
from nvct.host import gpu_record, procfs
from nvct.host.gpu_record import Holding
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.sample_model import NvmlSamples
from nvct.host.nvml.session import shared_session
from nvct.host.roots import Roots
from nvct.mig import holders

RUNTIMES = re.compile(r"[/:-](?:runc|crun|youki)(?![a-z])")
"""Matches targets of /proc/PID/exe: /usr/bin/crun, /runc, /memfd:runc_cloned:/proc/self/exe."""


class Device(NamedTuple):
    """A GPU, or one of its MIG devices."""

    gpu: int
    instance: str
    """Ids of GPU instance and compute instance, such as 1/0; "" for the GPU itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A process that has a device open, or a container that has only the device's node."""

    device: Device
    pid: int = 0  # of the process; 0 if a container only has the node
    command: str = ""  # the process's name in the kernel; "" without a process
    memory: int | None = None  # bytes of the GPU's memory; None if NVML does not report it
    unit: str = ""  # the process's systemd service, "" without one
    # container, namespace and pod; empty outside of containers
    labels: Mapping[str, str] = field(default_factory=dict)
    # when the container got the device, in seconds since 1970; 0.0 if unknown
    since: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the use for JSON."""
        return {
            "gpu": self.device.gpu,
            "instance": self.device.instance,
            "pid": self.pid,
            "command": self.command,
            "memory": self.memory,
            "unit": self.unit,
            **{name: self.labels.get(name, "") for name in ("container", "namespace", "pod")},
            "since": self.since or None,
        }


def of_host(roots: Roots) -> list[Use]:
    """Return the uses of GPUs; DriverNotFoundError without NVML, NvmlError without an answer."""
    session = shared_session(nvml_library(roots))
    state = session.mig()
    try:
        samples = session.ask("samples", NvmlSamples)
    except NvmlError:
        samples = None  # then the memory of processes is unknown
    record = gpu_record.read()
    return users(roots, state, samples, recorded=record.holdings if record else ())


def users(
    roots: Roots,
    state: MigState,
    samples: NvmlSamples | None = None,
    host: str = "/",
    recorded: Sequence[Holding] = (),
) -> list[Use]:
    """Return the uses of GPUs, sorted by device and process."""
    containers = Containers(host)
    containers.refresh()
    known = {each.id: each for each in recorded}
    memory = _memory(samples)
    found = []
    for holder in holders.holders(roots, state.gpus, ignore=holders.own_processes(roots)):
        device = _device(holder.device)
        whole = Device(device.gpu, "")  # old drivers report memory without the instance
        holding = known.get(containers.id_of(holder.pid))
        found.append(
            Use(
                device=device,
                pid=holder.pid,
                command=holder.command,
                memory=memory.get((device, holder.pid), memory.get((whole, holder.pid))),
                unit=holder.unit,
                labels=holding.labels if holding else containers.labels(holder.pid),
                since=holding.since if holding else 0.0,
            )
        )
    busy = {(use.device, tuple(sorted(use.labels.items()))) for use in found}
    names = holders.device_numbers(roots, state.gpus, None)
    devices = {number: _device(name) for number, (name, _) in names.items()}
    held = [(each.labels, each.since, each.numbers) for each in recorded]
    for id_, pid in containers.first_processes(roots.proc):
        if id_ not in known:
            held.append((dict(containers.labels(pid)), 0.0, tuple(_nodes(roots, pid, devices))))
    for labels, since, numbers in held:
        given = dict.fromkeys(devices[each] for each in numbers if each in devices)
        who = tuple(sorted(labels.items()))
        idle = (device for device in given if (device, who) not in busy)
        found += [Use(device=device, labels=labels, since=since) for device in idle]
    return sorted(without_ways(found), key=operator.attrgetter("device", "pid"))


def without_ways(uses: Sequence[Use]) -> list[Use]:
    """Return the uses without those of a GPU by a user of its MIG device, who needs both nodes."""
    of_instances = [(use.device.gpu, use.pid, use.labels) for use in uses if use.device.instance]
    return [
        use
        for use in uses
        if use.device.instance or (use.device.gpu, use.pid, use.labels) not in of_instances
    ]


def _device(name: str) -> Device:
    """Parse a device's name in nvct.mig.holders, such as "GPU 0, instance 1/0"."""
    gpu, _, instance = name.removeprefix("GPU ").partition(", instance ")
    return Device(int(gpu), instance)


def _memory(samples: NvmlSamples | None) -> dict[tuple[Device, int], int]:
    total: dict[tuple[Device, int], int] = {}
    for gpu in samples.gpus if samples else ():
        for process in gpu.processes:
            if process.memory is not None:
                instance = f"{process.gi}/{process.ci}" if process.gi >= 0 else ""
                key = Device(gpu.index, instance), process.pid
                total[key] = total.get(key, 0) + process.memory
    return total


def _is_being_made(folder: str, roots: Roots) -> bool:
    """Report whether the process of a procfs folder is a runtime that makes a container.

    A runtime has the host's root until it has mounted the container's. The program is tested, too,
    because a container can keep the host's root: `docker run -v /:/host IMAGE chroot /host`.
    """
    try:
        if not RUNTIMES.search(os.readlink(f"{folder}/exe")):
            return False
        hosts = ("/", f"{roots.proc}/1/root")
        return any(os.path.samefile(f"{folder}/root", host) for host in hosts)
    except OSError:  # another user's process, or it has ended
        return False


def _nodes(
    roots: Roots, pid: int, devices: Mapping[tuple[int, int], Device]
) -> Iterator[tuple[int, int]]:
    """Yield the numbers of GPU nodes in the /dev of a container's process.

    Only the driver's names are looked up, because the container may have any other files there.
    """
    folder = procfs.folder_of_live_thread(roots.proc, pid)
    if _is_being_made(folder, roots):
        return
    for (_, minor), device in devices.items():
        name = f"nvidia-caps/nvidia-cap{minor}" if device.instance else f"nvidia{minor}"
        try:
            status = os.stat(f"{folder}/root/dev/{name}", follow_symlinks=False)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode):
            yield os.major(status.st_rdev), os.minor(status.st_rdev)
