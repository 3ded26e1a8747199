# SPDX-License-Identifier: Apache-2.0
"""Finds free GPUs and MIG devices, for the word free:N of a request, and `nvct ps --free`.

Cold; changes nothing. A device is in use if a process computes on it, a container has its node, or
a lease of it counts (nvct.container.leases). A display server or monitor does not use a GPU.
Without root, containers of other users are only seen if they compute.
"""

from __future__ import annotations

import os
import posix
import pwd
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nvct.compile import live_host
from nvct.compile.__main__ import main
from nvct.config import load
from nvct.container import leases
from nvct.doctor import gpu_users
from nvct.doctor.containers import Containers, joined
from nvct.doctor.gpu_users import Device, Use
from nvct.errors import HostError, UsageError
from nvct.host import procfs
from nvct.host.model import DISPLAY_ONLY
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.mig_model import MigState
from nvct.host.nvml.sample_model import NvmlSamples
from nvct.host.nvml.session import shared_session
from nvct.host.roots import Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A GPU that is not in MIG mode, or a MIG device."""

    device: Device
    uuid: str
    lease: str  # its name in leases: the UUID of a GPU, and for a MIG device its number there
    profile: str  # of a MIG device, "" of a GPU
    # memory, used: bytes; 0 if NVML does not report them
    memory: int
    used: int
    users: tuple[str, ...]  # who uses it, each as text

    @property
    def name(self) -> str:
        """A text such as "GPU 0" or "MIG device 1/0 of GPU 0"."""
        gpu = f"GPU {self.device.gpu}"
        return f"MIG device {self.device.instance} of {gpu}" if self.device.instance else gpu

    def to_dict(self) -> dict[str, object]:
        """Return the device for JSON."""
        return {
            "gpu": self.device.gpu,
            "instance": self.device.instance,
            "uuid": self.uuid,
            "profile": self.profile,
            "memory": self.memory,
            "memory_used": self.used,
            "free": not self.users,
            "users": list(self.users),
        }


def of_host(roots: Roots, folder: str) -> list[Candidate]:
    """Return the devices of this host; `folder` has the leases.

    Raises DriverNotFoundError if NVML is missing, NvmlError if it does not answer, and
    UnsafePathError if another user can write to the folder of leases.
    """
    session = shared_session(nvml_library(roots))
    state = session.mig()
    samples = session.ask("samples", NvmlSamples)
    containers = Containers()
    containers.refresh()
    uses = gpu_users.users(roots, state, samples)
    return candidates(state, samples, uses, held(folder, containers), containers)


def held(folder: str, containers: Containers) -> dict[str, str]:
    """Return the holders of leases that count, by the device's name in leases."""
    try:
        fd = leases.open_folder(folder, create=False)
    except HostError:  # it does not exist yet
        return {}
    try:
        found = [lease for lease in leases.all_in(fd) if lease.counts]
    finally:
        posix.close(fd)
    return {lease.device: _who(lease.pid, containers) for lease in found}


def _who(pid: int, containers: Containers) -> str:
    if name := containers.name_of_process(pid):
        return f"container {name}"
    command = procfs.command("/proc", pid)
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        user = pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        user = ""
    about = " of ".join(filter(None, (command, user)))
    return f"process {pid} ({about})" if about else f"process {pid}"


def candidates(
    state: MigState,
    samples: NvmlSamples,
    uses: Sequence[Use],
    leased: dict[str, str],
    containers: Containers,
) -> list[Candidate]:
    """Return the GPUs that are not in MIG mode, and the MIG devices."""
    in_mig_mode = {gpu.uuid for gpu in state.gpus if gpu.enabled}
    found = []
    for gpu in samples.gpus:
        if gpu.name in DISPLAY_ONLY:
            continue
        parts = [
            (Device(gpu.index, f"{mig.gi}/{mig.ci}"), mig.uuid, mig.profile, mig.values)
            for mig in gpu.mig
        ]
        if gpu.uuid not in in_mig_mode:
            parts = [(Device(gpu.index, ""), gpu.uuid, "", gpu.values)]
        for device, uuid, profile, values in parts:
            lease = ":".join(filter(None, (gpu.uuid, device.instance.replace("/", "-"))))
            users = [
                _who(process.pid, containers)
                for process in gpu.processes
                if process.computes
                and (process.gi < 0 or f"{process.gi}/{process.ci}" == device.instance)
            ]
            holding = (device, Device(gpu.index, ""))  # a container may have the whole GPU
            having = (use for use in uses if use.labels and use.device in holding)
            users += [f"container {joined(use.labels)}" for use in having]
            users += [who for one, who in leased.items() if one == uuid or leases.meet(one, lease)]
            found.append(
                Candidate(
                    device=device,
                    uuid=uuid,
                    lease=lease,
                    profile=profile,
                    memory=int(values.get("memory_total", 0)),
                    used=int(values.get("memory_used", 0)),
                    users=tuple(dict.fromkeys(users)),
                )
            )
    return found


def fitting(found: Sequence[Candidate], memory: int, profile: str) -> list[Candidate]:
    """Return the devices of a profile with at least this memory, the emptiest first."""
    fits = (c for c in found if c.profile == profile and c.memory >= memory)
    return sorted(fits, key=lambda c: (c.used, c.device))


def used_by(found: Sequence[Candidate]) -> list[str]:
    """Return a text for each group of devices with the same users, such as "GPU 0, 1: pod a"."""
    devices: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        devices.setdefault(one.users, []).append(one.name)
    return [f"{_names(names)}: {' and '.join(users)}" for users, names in devices.items()]


def there(found: Sequence[Candidate], profile: str) -> str:
    """Return a text about this host's devices, for a request that too few of them fit."""
    kinds = Counter(
        one.profile if profile else f"{one.memory / (1 << 30):.1f}Gi"
        for one in found
        if bool(one.profile) == bool(profile)
    )
    text = ", ".join(f"{number} of {kind}" for kind, number in sorted(kinds.items()))
    return f"this host has {text or 'none'}"


def _names(names: Sequence[str]) -> str:
    """Return a text such as "GPU 0, 1, 2"."""
    return ", ".join([names[0], *(name.removeprefix("GPU ") for name in names[1:])])


def answer(args: list[str]) -> dict[str, object]:
    """Return the free devices, the users of the others, and the path of the hook program."""
    match args:
        case ["free", path, folder, memory, profile]:
            settings = load.load(path)
            found = of_host(live_host.roots_of(settings), folder)
            fits = fitting(found, int(memory), profile)
            return {
                "devices": {c.lease: c.uuid for c in fits if not c.users},
                "hook": live_host.hook_path(settings),
                "used": used_by([c for c in fits if c.users]),
                "fitting": len(fits),
                "there": there(found, profile),
            }
    raise UsageError(f"nvct.doctor.free_gpus does not know {' '.join(args)!r}")


if __name__ == "__main__":
    sys.exit(main(answer))
