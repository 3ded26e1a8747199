# SPDX-License-Identifier: Apache-2.0
"""The devices of a node for dynamic resource allocation: names, attributes, capacities.

Contract: pure functions of values. Names, attributes and capacities are those of NVIDIA's driver
`gpu.nvidia.com`; `ecc`, `numaNode` and `nvlinkDomain` are nvct's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from nvct.agent.labels.gpus import family
from nvct.agent.machine.inventory import Inventory
from nvct.agent.mps.daemons import UNKNOWN, VOLTA
from nvct.host.model import Gpu
from nvct.host.nvml.mig_model import MigGpu
from nvct.host.nvml.model import GpuAttributes, GpuLink, GpuProperties

Value: TypeAlias = "str | int | bool | Version"
Attributes: TypeAlias = Mapping[str, Value]

DRIVER = "gpu.nvidia.com"
MIB = 1 << 20
MEMORY, CORES = "memory", "cores"
"""Capacities that claims can share; cores are percent of a GPU's threads."""
TEXT_LIMIT = 64
"""The most characters of an attribute's value (ResourceSlice of resource.k8s.io)."""
NUMA_NODE = "resource.kubernetes.io/numaNode"
PCI_BUS_ID, PCIE_ROOT = "resource.kubernetes.io/pciBusID", "resource.kubernetes.io/pcieRoot"


class Version(NamedTuple):
    """A semantic version, which CEL compares by `compareTo(semver('9.0.0'))`."""

    text: str


class Place(NamedTuple):
    """The place of a MIG device on its GPU, whether it exists or not.

    Attributes:
        kind: NVML_GPU_INSTANCE_PROFILE_*.
        start, size: in memory slices.
        compute: NVML_COMPUTE_INSTANCE_PROFILE_* of its one compute instance.
    """

    kind: int
    start: int
    size: int
    compute: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that the scheduler can allocate.

    Attributes:
        name: in its pool, e.g. gpu-0.
        compute: the CUDA compute capability, UNKNOWN if NVML does not tell it.
        uuid: of the GPU or MIG device, the name of its CDI device; "" before the device is made.
        gpu: the UUID of its GPU.
        attributes: by name; a name without a domain belongs to the driver.
        place: of a MIG device that is made when a claim is prepared, None for other devices.
        counter_set, counters: what it consumes of this set; {} if it shares no counters.
        instance: the ids of GPU instance and compute instance of a MIG device that exists.
        unhealthy: why pods cannot have it now, "" if they can.
        xid: the last XID that an application has caused on it, 0 without one.
        share_mib: the size of its shares of memory in MiB, 0 if sizes can differ, None if only
            one claim can have it.
    """

    name: str
    uuid: str
    gpu: str
    attributes: Attributes
    capacity: Mapping[str, int]
    compute: tuple[int, int] = UNKNOWN
    share_mib: int | None = None
    place: Place | None = None
    counter_set: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    instance: tuple[int, int] | None = None
    unhealthy: str = ""
    xid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The devices of a node, in the order in which the scheduler takes them.

    Attributes:
        counters: what there is of each counter that devices share, by set and name.
    """

    devices: tuple[Device, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def with_health(
        self,
        problem: Callable[[str, tuple[int, int] | None], str],
        xid: Callable[[str, tuple[int, int] | None], int] = lambda *_: 0,
        *,
        drops: bool,
    ) -> Offer:
        """Return the same devices with their health.

        Args:
            problem: returns `Device.unhealthy`, given the device's `gpu` and `instance`.
            xid: returns `Device.xid`, same.
            drops: whether to leave out the devices that have a problem.
        """
        marked = []
        for device in self.devices:  # runs each second, and to copy all takes ten times as long
            health = problem(device.gpu, device.instance), xid(device.gpu, device.instance)
            is_same = health == (device.unhealthy, device.xid)
            marked.append(
                device if is_same else replace(device, unhealthy=health[0], xid=health[1])
            )
        kept = tuple(device for device in marked if not (drops and device.unhealthy))
        return self if kept == self.devices else replace(self, devices=kept)

    def with_shares(self, sizes: Mapping[str, int]) -> Offer:
        """Return the same devices; claims can share the memory of those that MPS can limit.

        Those are whole GPUs since Volta. `sizes` has the size of a GPU's shares in MiB by its
        UUID, where a claim has determined it.
        """
        shared = tuple(
            replace(device, share_mib=sizes.get(device.gpu, 0))
            if device.compute >= VOLTA
            and device.uuid == device.gpu
            and device.capacity.get(MEMORY)
            else device
            for device in self.devices
        )
        return replace(self, devices=shared)

    def of_gpus(self, gpus: Collection[str]) -> Offer:
        """Return the devices and counters of these GPUs, given by UUID."""
        devices = tuple(device for device in self.devices if device.gpu in gpus)
        sets = {device.counter_set for device in devices if device.counters}
        return Offer(
            devices=devices,
            counters={name: each for name, each in self.counters.items() if name in sets},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts about a machine that its devices are computed from; mappings are by GPU UUID.

    Attributes:
        attributes, properties: NVML's.
        pcie_roots: without GPUs whose PCIe root is unknown.
        mig: NVML's MIG state, {} if no GPU is in MIG mode.
    """

    inventory: Inventory
    attributes: Mapping[str, GpuAttributes] = field(default_factory=dict)
    properties: Mapping[str, GpuProperties] = field(default_factory=dict)
    pcie_roots: Mapping[str, str] = field(default_factory=dict)
    mig: Mapping[str, MigGpu] = field(default_factory=dict)

    def compute(self, gpu: Gpu) -> tuple[int, int]:
        """Return the CUDA compute capability of a GPU, UNKNOWN if NVML does not tell it."""
        known = self.attributes.get(gpu.uuid)
        return known.compute if known else UNKNOWN


def devices(machine: Machine) -> tuple[Device, ...]:
    """Return the GPUs of a node that are not in MIG mode, in NVML's order."""
    domains = nvlink_domains(machine)
    return tuple(
        _gpu(gpu, machine, domains.get(gpu.uuid, ""))
        for gpu in machine.inventory.gpus
        if not gpu.mig_enabled
    )


def counter_set(gpu: Gpu) -> str:
    """Return the name of the set of counters that MIG devices of a GPU share."""
    return f"gpu-{gpu.minor}-counter-set"


def nvlink_domains(machine: Machine) -> dict[str, str]:
    """Return the NVLink domain of each GPU by its UUID; GPUs of one domain can use NVLink.

    A domain is named by the fabric's UUID and clique, else by the UUID of its first GPU. A GPU
    without NVLink has no domain.
    """
    inventory = machine.inventory
    groups = _linked(inventory.links)
    domains = {}
    for gpu in inventory.gpus:
        known = machine.attributes.get(gpu.uuid)
        domain = known.clique if known else ""
        first = next((g.uuid for g in inventory.gpus if g.uuid in groups.get(gpu.uuid, ())), "")
        if domain or first:
            domains[gpu.uuid] = domain or first
    return domains


def _linked(links: tuple[GpuLink, ...]) -> dict[str, set[str]]:
    """Return each GPU's group: the GPUs that direct NVLinks connect with it."""
    groups: dict[str, set[str]] = {}
    for link in links:
        if link.nvlinks:
            first, second = (groups.get(uuid, {uuid}) for uuid in link.gpus)
            both = first | second
            groups |= dict.fromkeys(both, both)
    return groups


def _gpu(gpu: Gpu, machine: Machine, domain: str) -> Device:
    known = machine.attributes.get(gpu.uuid)
    memory = known.memory_mib if known else None
    return Device(
        name=f"gpu-{gpu.minor}",
        uuid=gpu.uuid,
        gpu=gpu.uuid,
        attributes={"type": "gpu", "uuid": gpu.uuid, **common(gpu, machine, domain)},
        capacity={} if memory is None else {MEMORY: memory * MIB},
        compute=machine.compute(gpu),
    )


def common(gpu: Gpu, machine: Machine, domain: str) -> dict[str, Value]:
    """Return the attributes that a GPU and its MIG devices share; unknown ones are left out."""
    inventory, known = machine.inventory, machine.attributes.get(gpu.uuid)
    properties = machine.properties.get(gpu.uuid)
    compute = machine.compute(gpu)
    values: dict[str, Value | None] = {
        "productName": gpu.model,
        "brand": properties.brand if properties else None,
        "architecture": family(*compute).replace("-", " ").title() if compute[0] else None,
        "cudaComputeCapability": version(f"{compute[0]}.{compute[1]}") if compute[0] else None,
        "driverVersion": version(inventory.driver_version),
        "cudaDriverVersion": version(inventory.cuda_version),
        "addressingMode": properties.addressing if properties else None,
        "ecc": known.ecc if known else None,
        "numaNode": inventory.numa.get(gpu.uuid),
        NUMA_NODE: inventory.numa.get(gpu.uuid),
        "nvlinkDomain": domain,
        PCI_BUS_ID: gpu.bus_id,
        PCIE_ROOT: machine.pcie_roots.get(gpu.uuid),
    }
    return {
        name: value[:TEXT_LIMIT] if isinstance(value, str) else value
        for name, value in values.items()
        if value not in (None, "")
    }


def version(text: str) -> Version | None:
    """Return a version of one to three numbers in the form of semver; None for another text.

    Semver allows no leading zeros: driver 580.65.06 is 580.65.6.
    """
    parts = text.split(".")
    if not 1 <= len(parts) <= 3 or not all(p.isascii() and p.isdigit() for p in parts):
        return None
    numbers = [int(part) for part in parts]
    return Version(".".join(map(str, [*numbers, 0, 0][:3])))
