# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemons that a node's resources need, and limits of clients: pure functions.

One daemon serves each resource whose devices are shared by MPS. It divides the memory and the
threads of a GPU among its replicas, as NVIDIA's mps-control-daemon 0.20 does. A claim of DRA that
asks for MPS has a daemon of its own, with the limits that it asks for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from nvct import typed
from nvct.errors import HostError
from nvct.host.nvml.model import GpuAttributes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.device_plugin.resources import Resource

VOLTA = (7, 0)  # The first compute capability whose MPS server has limits and 48 clients
UNKNOWN = (0, 0)
CLIENTS, CLIENTS_BEFORE_VOLTA = 48, 16
RESOURCE = re.compile(r"(gpu\.)?nvidia\.com/[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
CLAIMS = "gpu.nvidia.com/"
"""The start of the name of a claim's daemon, which no resource of the device plugin has."""
UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]{36}")
INDEX = re.compile(r"[0-9]{1,4}")
LONG = 3
MOST = 256  # More daemons are not kept: each is a process
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
FOLDER, SHM = "/mps", "/dev/shm"  # noqa: S108
"""Where containers have MPS's folders, and the shared memory of clients and servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """An MPS control daemon, or a time slice in place of one."""

    resource: str  # the name of the resource that it serves; of a claim CLAIMS and the uid
    uuids: tuple[str, ...]  # of its GPUs; a claim can have a MIG device
    # the memory of a client in MiB, by the index of the GPU; by its place in `uuids` for a claim,
    # whose daemon sees no other GPUs
    limits: Mapping[str, int] = field(default_factory=dict)
    percentage: int = 0  # of a GPU's threads for a client; 0 for no limit
    # whether clients of several users run at the same time, if the program has that option; else
    # clients of one user wait for the end of another user's
    multi_user: bool = False
    # of the GPUs instead of a daemon: 1 is short, 2 medium, 3 long; 0 is a daemon
    time_slice: int = 0

    @property
    def is_of_claim(self) -> bool:
        """Return whether it serves claims, and ends with them for good."""
        return self.resource.startswith(CLAIMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The daemons that a task wants, and whether to start them and stop others."""

    daemons: tuple[Daemon, ...] = ()
    starts: bool = True
    owner: Literal["", "dra"] = ""

    def __post_init__(self) -> None:
        """Raise ValueError for daemons that must not be started: another container names them."""
        if len(self.daemons) > MOST:
            raise ValueError(f"more than {MOST} MPS daemons")
        for daemon in self.daemons:
            check(daemon)


def check(daemon: Daemon) -> None:
    """Raise ValueError for fields that could name other folders or devices, or add commands."""
    if (
        not RESOURCE.fullmatch(daemon.resource)
        or ".." in daemon.resource
        or not all(UUID.fullmatch(uuid) for uuid in daemon.uuids)
        or not all(INDEX.fullmatch(index) for index in daemon.limits)
        or not 0 <= daemon.time_slice <= LONG
    ):
        raise ValueError("malformed MPS daemon")


def from_json(value: object) -> Daemon:
    """Return a daemon from JSON data; ValueError if it is malformed."""
    if isinstance(value, dict):  # an earlier version of nvct did not write all fields
        value = {"multi_user": False, "time_slice": 0, **value}
    daemon = typed.load(Daemon, value, "an MPS daemon")
    check(daemon)
    return daemon


def wanted(
    resources: Iterable[Resource], attributes: Mapping[str, GpuAttributes]
) -> dict[str, Daemon]:
    """Return the daemons of resources that are shared by MPS, by resource.

    HostError if a device cannot be shared by MPS, or not by so many clients.
    """
    daemons = {}
    for resource in resources:
        if any(device.instance is not None for device in resource.devices.values()):
            raise HostError(
                "sharing using MPS is not supported for MIG devices",
                hint="share them by sharing.timeSlicing",
            )
        daemon = _daemon(resource, attributes)
        if daemon is not None:
            daemons[resource.name] = daemon
    return daemons


def has_limits(compute: tuple[int, int]) -> bool:
    """Return whether MPS can limit clients on GPUs of a compute capability; True if UNKNOWN."""
    return not VOLTA > compute > UNKNOWN


def _daemon(resource: Resource, attributes: Mapping[str, GpuAttributes]) -> Daemon | None:
    shared = [device for device in resource.devices.values() if device.is_replica]
    if not shared:
        return None
    replicas = Counter(device.uuid for device in shared)
    limits, has_threads = {}, False
    for device in shared:
        known = attributes.get(device.uuid)
        can_limit = known is None or has_limits(known.compute)
        allowed = CLIENTS if can_limit else CLIENTS_BEFORE_VOLTA
        count = replicas[device.uuid]
        if count > allowed:
            raise HostError(
                "invalid MPS configuration: invalid device maximum allowed replicas exceeded: "
                f"{count} > {allowed}",
                hint=f"lower the replicas of {resource.name} in sharing.mps",
            )
        has_threads = has_threads or can_limit
        if can_limit and known is not None and known.memory_mib:
            limits[device.index] = known.memory_mib // count
    return Daemon(
        resource=resource.name,
        uuids=tuple(replicas),
        limits=limits,
        percentage=100 // max(replicas.values()) if has_threads else 0,
    )


def of_shares(gpu: str) -> str:
    """Return the resource name of the daemon that serves all shares of a GPU's memory."""
    return f"{CLAIMS}{gpu.lower()}"


def share_variables(memory_mib: int, cores: int) -> dict[str, str]:
    """Return the variables that limit a client of `of_shares`; 0 cores is no limit.

    They can only lower the limits of the daemon, which sees one GPU as number 0.
    """
    found = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory_mib}M"}
    return {**found, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(cores)} if cores else found


def variable(resource: str) -> tuple[str, str]:
    """Return the name and the value of the variable that names the pipes of a resource."""
    return PIPES, f"{FOLDER}/{resource}/pipe"


class Mount(NamedTuple):
    """A folder of the host in a container."""

    host_path: str
    path: str
    is_read_only: bool


def mounts(resource: str, root: str) -> tuple[Mount, Mount]:
    """Return a container's mounts: pipes are read-only, because clients only connect to them."""
    shm = f"{root}/{resource}/shm" if resource.startswith(CLAIMS) else f"{root}/shm"
    pipes = f"{resource}/pipe"
    return (
        Mount(f"{root}/{pipes}", f"{FOLDER}/{pipes}", is_read_only=True),
        Mount(shm, SHM, is_read_only=False),
    )
