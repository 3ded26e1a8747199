# SPDX-License-Identifier: Apache-2.0
"""What an agent that sees nothing of its host may ask of it: few fixed requests.

Whoever writes CDI specifications is root of the host, by a hook, and whoever reads its files knows
its keys. So no request has a path, hook, device node or variable: the process that answers takes
these from its own settings and its own look at the machine, see `nvct.agent.host_side`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from nvct.host.model import Mode

CLOSE = "close"  # The verb that ends the worker, which closes NVML's handles
ENGINE = "engine"
"""The verb that asks the container engine, not NVML: this process may see its socket."""
MPS = "mps"  # The verb of MPS control daemons: see `nvct.agent.mps.keeper`
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""Of an object of Kubernetes; it becomes part of a file's name."""
GPU = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # Of a device in a ResourceSlice
OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""The name of an object of Kubernetes; it becomes part of a path in containers."""
LONGEST = 1 << 18  # Characters of a request's metadata: a request has 32 devices of 32 attributes
SOCKET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
"""The name of a socket in one of the kubelet's folders."""
DRIVER_CLASS, CLAIM_CLASS = "driver", "claim"  # Of the CDI devices of dynamic resource allocation
OF_MPS = "-mps"  # The end of the name of a claim's CDI device for MPS
MOST = 4096  # Claims, and devices of one: more are not believed
CHANNELS = 4096  # More IMEX channels no driver has
Flag: TypeAlias = Literal[
    "enable-explicit-driver-libraries", "enable-coherent-annotations",
    "disable-multiple-csv-devices", "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer", "disable-nvsandboxutils",
]  # fmt: skip
"""As `nvct.host.discovery_options.KNOWN`."""
Hook: TypeAlias = Literal[
    "all", "create-symlinks", "enable-cuda-compat", "update-ldcache",
    "disable-device-node-modification", "update-application-profile", "chmod",
]  # fmt: skip
"""As `nvct.cdi.make.hooks.NAMES`, and all of them."""
Feature: TypeAlias = Literal["gdrcopy", "gds", "mofed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request; its fields are the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSpecs(Call):
    """Write the specifications of the device plugin; answered by `Written`."""

    ids: Literal["uuid", "index"]
    flags: tuple[Flag, ...]
    disabled_hooks: tuple[Hook, ...]
    features: tuple[Feature, ...]
    imex_channels: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(0 <= channel < CHANNELS for channel in self.imex_channels):
            raise ValueError("no IMEX channel has such a number")


class Written(NamedTuple):
    """The plugin's specifications that were written."""

    devices: tuple[str, ...]  # names in the specification of GPUs
    features: tuple[str, ...]
    view: str  # path of the node's specification that gives the driver's files, "" if none does
    reason: str  # why none does
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSpec(Call):
    """Write the specification of the driver's files for claims; answered by warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A GPU or MIG device of a claim, which has to be on this machine."""

    name: str
    uuid: str
    is_admin: bool

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError("it is no name of a device")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata:
    """What containers can read about the devices of one request of a claim."""

    request: str
    document: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.request) or len(self.document) > LONGEST:
            raise ValueError("it is no metadata of a request")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec(Call):
    """Write the specification of a claim.

    Attributes:
        metadata: for which its containers find a file below the name of the claim, or below
            `pod_claim` if it is of a template.
        mps: whether it uses an MPS control daemon.
        shared_gpu: UUID of the GPU whose daemon it uses, "" if the daemon is its own.
        memory_mib, cores: its share of that GPU's memory, and of the threads in percent.
    """

    uid: str
    devices: tuple[ClaimDevice, ...]
    mps: bool
    shared_gpu: str = ""
    memory_mib: int = 0
    cores: int = 0
    metadata: tuple[RequestMetadata, ...] = ()
    name: str = ""
    pod_claim: str = ""

    def __post_init__(self) -> None:
        _check((self.uid,))
        if not all(OBJECT.fullmatch(name) for name in (self.name, self.pod_claim) if name):
            raise ValueError("it is no name of a claim")
        if self.shared_gpu and not GPU.fullmatch(self.shared_gpu):
            raise ValueError("it is no UUID of a GPU")
        if len(self.devices) > MOST:
            raise ValueError(f"more than {MOST} devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepClaims(Call):
    """Remove the specifications of all claims but these."""

    uids: tuple[str, ...]

    def __post_init__(self) -> None:
        _check(self.uids)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveClaim(Call):
    """Remove the specification of a claim, if there is one."""

    uid: str

    def __post_init__(self) -> None:
        _check((self.uid,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(Call):
    """Return a value that changes when the specifications of others do; nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible(Call):
    """Return why devices cannot be offered by CDI, "" if they can; nothing is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNames(Call):
    """Return a mark of each of the driver's nodes in /dev, which changes as the node does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Call):
    """Return what only this side sees of the machine; answered by `Machine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is to be seen of a machine in /dev and in its root."""

    mode: Mode
    # major, minor, mode, uid and gid of device nodes, by their paths below /dev
    nodes: Mapping[str, tuple[int, int, int, int, int]]
    folders: tuple[str, ...]  # those below /dev that can have such nodes, and are there
    imex_channels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDrivers(Call):
    """Return the drivers of vGPUs' hosts, as this machine's PCI devices name them.

    Answered by `pci.HostDriver` of each. Without privileges they cannot be read.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PciNames(Call):
    """Return the names of NVIDIA's PCI devices by number, from the machine's own list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContainers(Call):
    """Return the labels of the containers of processes, by number: of those that have a GPU."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketOwner(Call):
    """Return the process that listens on a socket of the kubelet's; a `socket_owner.Owner`."""

    folder: Literal["device-plugins", "plugins_registry"]
    name: str

    def __post_init__(self) -> None:
        if not SOCKET.fullmatch(self.name):
            raise ValueError("it is no name of a socket")


CALLS: Mapping[str, type[Call]] = {
    "spec_plugin": PluginSpecs,
    "spec_driver": DriverSpec,
    "spec_claim": ClaimSpec,
    "spec_keep_claims": KeepClaims,
    "spec_remove_claim": RemoveClaim,
    "spec_published": Published,
    "spec_possible": Possible,
    "node_names": NodeNames,
    "machine": Look,
    "host_drivers": HostDrivers,
    "pci_names": PciNames,
    "process_containers": ProcessContainers,
    "socket_owner": SocketOwner,
}
"""The verbs."""
VERBS: Mapping[type[Call], str] = {kind: verb for verb, kind in CALLS.items()}
WITHOUT_NVML = frozenset(CALLS) - {"spec_plugin", "spec_driver", "spec_claim"}
"""Verbs that need no report of NVML."""


def _check(uids: tuple[str, ...]) -> None:
    if len(uids) > MOST:
        raise ValueError(f"more than {MOST} claims")
    if not all(UID.fullmatch(uid) for uid in uids):
        raise ValueError("it is no uid of a claim")


def metadata_name(uid: str, request: str) -> str:
    """Return the name of the CDI device that gives a request's metadata to a container."""
    return f"{uid}-{request}-metadata"


def device_name(uid: str, device: str, *, is_admin: bool) -> str:
    """Return a name of CDI; a claim may have a device twice, once of them with admin access."""
    return f"{uid}-{device}{'-admin' if is_admin else ''}"
