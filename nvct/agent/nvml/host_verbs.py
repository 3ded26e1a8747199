# SPDX-License-Identifier: Apache-2.0
"""The few requests by which an agent without access to the host reads and writes its files.

Who can write CDI specifications can become root of the host by a hook, and who can read any of its
files can read its keys. So no request has a path, hook, device node or variable: the process that
answers takes these from its own settings and its own look at the machine, see
`nvct.agent.host_side`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from nvct.host.model import Mode

CLOSE = "close"  # The verb that ends the worker, which closes NVML's handles
ENGINE = "engine"
"""The verb that asks the container engines, not NVML: the worker can see their sockets."""
MPS = "mps"  # The verb of MPS control daemons: see `nvct.agent.mps.keeper`
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""The uid of an object of Kubernetes; it becomes part of a file's name."""
GPU = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # The name of a device in a ResourceSlice
OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""The name of an object of Kubernetes; it becomes part of a path in containers."""
LONGEST = 1 << 18  # Characters of a request's metadata: a request has 32 devices of 32 attributes
SOCKET = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
"""The name of a socket in one of the kubelet's folders."""
DRIVER_CLASS, CLAIM_CLASS = "driver", "claim"  # Of the CDI devices of dynamic resource allocation
OF_MPS = "-mps"  # The end of the name of a claim's CDI device for MPS
MOST = 4096  # The most claims, and the most devices of a claim, that a request may have
CHANNELS = 4096  # No driver has more IMEX channels
Flag: TypeAlias = Literal[
    "enable-explicit-driver-libraries", "enable-coherent-annotations",
    "disable-multiple-csv-devices", "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer", "disable-nvsandboxutils",
]  # fmt: skip
"""The same as `nvct.host.discovery_options.KNOWN`."""
Hook: TypeAlias = Literal[
    "all", "create-symlinks", "enable-cuda-compat", "update-ldcache",
    "disable-device-node-modification", "update-application-profile", "chmod",
]  # fmt: skip
"""`nvct.cdi.make.hooks.NAMES`; `all` stands for all of them."""
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
            raise ValueError("an IMEX channel is out of range")


class Written(NamedTuple):
    """The answer to `PluginSpecs`: what was written."""

    devices: tuple[str, ...]  # names in the specification of GPUs
    features: tuple[str, ...]
    view: str  # path of the node's specification that gives the driver's files, "" if none does
    reason: str  # why no specification of the node gives them
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSpec(Call):
    """Write the specification of the driver's files for claims; answered by warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A GPU or MIG device of a claim; this machine must have it."""

    name: str
    uuid: str
    is_admin: bool

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError("it is not the name of a device")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetadata:
    """What containers can read about the devices of one request of a claim."""

    request: str
    document: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.request) or len(self.document) > LONGEST:
            raise ValueError("it is not the metadata of a request")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec(Call):
    """Write the specification of a claim.

    Attributes:
        metadata: containers find a file for each, in a folder named as the claim, or as
            `pod_claim` if the claim is from a template.
        mps: whether the claim uses an MPS control daemon.
        shared_gpu: UUID of the GPU whose daemon the claim uses, "" if it has a daemon of its own.
        memory_mib, cores: its share of that GPU's memory, and of its threads in percent.
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
            raise ValueError("it is not the name of a claim")
        if self.shared_gpu and not GPU.fullmatch(self.shared_gpu):
            raise ValueError("it is not the UUID of a GPU")
        if len(self.devices) > MOST:
            raise ValueError(f"more than {MOST} devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepClaims(Call):
    """Remove the specifications of all claims except these."""

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
    """Return a value that changes when specifications of other programs do; write nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible(Call):
    """Return why devices cannot be offered by CDI, "" if they can; write nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNames(Call):
    """Return a text for each of the driver's nodes in /dev, which changes when the node does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Call):
    """Return what only the host's side can see of the machine; answered by `Machine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What can be seen of a machine in /dev and in its root."""

    mode: Mode
    # major, minor, mode, uid and gid of device nodes, by their paths below /dev
    nodes: Mapping[str, tuple[int, int, int, int, int]]
    folders: tuple[str, ...]  # those below /dev that exist and can have such nodes
    imex_channels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDrivers(Call):
    """Return the vGPU host drivers that this machine's PCI devices name, as `pci.HostDriver`.

    Reading them needs privileges.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PciNames(Call):
    """Return the names of NVIDIA's PCI devices by number, from the machine's own list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContainers(Call):
    """Return the labels of processes' containers by pid; only of processes that have a GPU."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketOwner(Call):
    """Return the process that listens on a socket in a kubelet's folder: `socket_owner.Owner`."""

    folder: Literal["device-plugins", "plugins_registry"]
    name: str

    def __post_init__(self) -> None:
        if not SOCKET.fullmatch(self.name):
            raise ValueError("it is not the name of a socket")


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
"""The requests by verb."""
VERBS: Mapping[type[Call], str] = {kind: verb for verb, kind in CALLS.items()}
WITHOUT_NVML = frozenset(CALLS) - {"spec_plugin", "spec_driver", "spec_claim"}
"""Verbs that need no report of NVML."""


def _check(uids: tuple[str, ...]) -> None:
    if len(uids) > MOST:
        raise ValueError(f"more than {MOST} claims")
    if not all(UID.fullmatch(uid) for uid in uids):
        raise ValueError("it is not the uid of a claim")


def metadata_name(uid: str, request: str) -> str:
    """Return the name of the CDI device that gives a request's metadata to a container."""
    return f"{uid}-{request}-metadata"


def device_name(uid: str, device: str, *, is_admin: bool) -> str:
    """Return a CDI device name; a claim can have a device twice, once with admin access."""
    return f"{uid}-{device}{'-admin' if is_admin else ''}"
