# SPDX-License-Identifier: Apache-2.0
"""The resources of a node, their devices and replicas: pure functions of inventory and settings.

Names, ids and refusals are those of NVIDIA's device plugin, with these differences: the patterns
of `resources` and the devices of `sharing` have an effect, and with MIG strategy mixed a compute
instance that is smaller than its GPU instance is left out instead of ending the program.

`Content` is what the server of a resource offers and answers from: values only, without gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvct.agent.core.config_file import PREFIX, Replicas, is_excluded, name_of
from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import ResourcesMode
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.machine.inventory import Inventory
from nvct.errors import HostError
from nvct.host.model import Gpu, MigDevice

GPU = f"{PREFIX}gpu"
MIXED = "set mig.strategy=mixed in the chart (MIG_STRATEGY=mixed without it)"
SEPARATOR = "::"  # Between a device's UUID and the number of a replica
DEVICES_LIMIT = 32768
"""The most devices of a resource, at 100 bytes each: the kubelet reads gRPC messages of 4 MiB."""
PART = re.compile(r"\d+c\.")
"""The start of the profile of a compute instance that is smaller than its GPU instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of a resource."""

    id: str  # the kubelet's; with a suffix if it is a replica
    uuid: str
    index: str  # "0", or "0:1" for a MIG device
    gpu: str  # the UUID of the GPU, also of a MIG device
    numa: int | None = None  # its NUMA node, None if there is none
    paths: tuple[str, ...] = ()
    # the ids of GPU instance and compute instance, None for a whole GPU
    instance: tuple[int, int] | None = None
    is_replica: bool = False  # whether other replicas are of the same device

    def name(self, strategy: str) -> str:
        """Return its name for runtimes and in CDI specifications, by a device id strategy."""
        return self.index if strategy == "index" else self.uuid

    @property
    def order(self) -> tuple[int, ...]:
        """Return the sort key: the index on the machine, then the number of the replica."""
        numbers = [*self.index.split(":"), self.id.partition(SEPARATOR)[2] or "0"]
        return tuple(int(number) if number.isdigit() else 0 for number in numbers)


ONLY = {
    "csv": Device(id="tegra", uuid="tegra", gpu="tegra", index="0"),
    "wsl": Device(id="all", uuid="all", gpu="all", index="all", paths=("/dev/dxg",)),
}
"""The one device of a machine without NVML's GPUs, by mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource that the kubelet offers to pods; devices by id, in the order of the machine."""

    name: str
    devices: Mapping[str, Device]

    @property
    def endpoint(self) -> str:
        """Return the name of its socket."""
        return f"nvidia-{self.name.partition('/')[2]}.sock"


def without(found: Mapping[str, Resource], gpus: Collection[str]) -> dict[str, Resource]:
    """Return the resources without the devices of these GPUs, given by UUID."""
    kept = {
        name: {id_: device for id_, device in resource.devices.items() if device.gpu not in gpus}
        for name, resource in found.items()
    }
    return {
        name: replace(found[name], devices=devices) for name, devices in kept.items() if devices
    }


def resources(inventory: Inventory, settings: Settings) -> tuple[dict[str, Resource], list[str]]:
    """Return the resources of a node by name, and a sentence for each device that is left out.

    HostError if the MIG devices do not fit the MIG strategy, or a setting names a device that does
    not exist.
    """
    warnings: list[str] = []
    devices: dict[str, list[Device]] = {}
    gpus = tuple(g for g in inventory.gpus if not is_excluded(g, settings.excluded))
    inventory = replace(inventory, gpus=gpus)
    if inventory.mode != "nvml":
        only = ONLY[inventory.mode]
        devices[name_of(only.uuid, settings.gpu_names) or GPU] = [only]
    for gpu in inventory.gpus:
        if gpu.mig_enabled and settings.mig_strategy != "none":
            continue
        name = name_of(gpu.model, settings.gpu_names) or GPU
        devices.setdefault(name, []).append(_gpu(gpu, inventory))
    if settings.mig_strategy != "none":
        mig = _mig_devices(inventory, settings, warnings)
        _check_mig(inventory, settings, has_gpus=bool(devices), has_mig=bool(mig))
        for name, of_name in mig.items():
            devices.setdefault(name, []).extend(of_name)
    shared = _shared(devices, settings.sharing.replicas)
    for name, of_name in shared.items():
        if len(of_name) > DEVICES_LIMIT:
            raise HostError(
                f"{name} would have {len(of_name)} devices, but the kubelet reads at most "
                f"{DEVICES_LIMIT}",
                hint="lower the number of replicas in sharing",
            )
    return {name: _resource(name, shared[name]) for name in sorted(shared)}, warnings


def _resource(name: str, devices: Iterable[Device]) -> Resource:
    ordered = sorted(devices, key=lambda device: device.order)
    return Resource(name=name, devices={device.id: device for device in ordered})


def _gpu(gpu: Gpu, inventory: Inventory) -> Device:
    return Device(
        id=gpu.uuid,
        uuid=gpu.uuid,
        index=str(gpu.index),
        gpu=gpu.uuid,
        numa=inventory.numa.get(gpu.uuid),
        paths=(f"/dev/nvidia{gpu.minor}",),
    )


def _mig_device(gpu: Gpu, mig: MigDevice, inventory: Inventory) -> Device:
    caps = (f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in mig.cap_minors)
    return replace(
        _gpu(gpu, inventory),
        id=mig.uuid,
        uuid=mig.uuid,
        index=f"{gpu.index}:{mig.index}",
        paths=(f"/dev/nvidia{gpu.minor}", *caps),
        instance=(mig.gi, mig.ci),
    )


def _mig_devices(
    inventory: Inventory, settings: Settings, warnings: list[str]
) -> dict[str, list[Device]]:
    devices: dict[str, list[Device]] = {}
    for gpu in inventory.gpus:
        if gpu.mig_enabled and not gpu.mig and settings.mig_strategy == "mixed":
            warnings.append(f"device {gpu.index} has no MIG devices configured")
        for mig in gpu.mig:
            name = _mig_name(mig, settings)
            if name:
                devices.setdefault(name, []).append(_mig_device(gpu, mig, inventory))
            else:
                warnings.append(
                    f"MIG device {gpu.index}:{mig.index} of profile {mig.profile or 'unknown'} is "
                    "left out: it is not a whole GPU instance, and no pattern names it"
                )
    return devices


def _mig_name(mig: MigDevice, settings: Settings) -> str:
    """Return the resource of a MIG device, "" if it has none."""
    name = name_of(mig.profile, settings.mig_names)
    if name or settings.mig_strategy == "single":
        return name or GPU
    if not mig.profile or PART.match(mig.profile):
        return ""
    return f"{PREFIX}mig-{mig.profile.replace('+', '.')}"


def _check_mig(inventory: Inventory, settings: Settings, *, has_gpus: bool, has_mig: bool) -> None:
    """Raise HostError if strategy single does not allow the devices; in the incumbent's words."""
    if settings.mig_strategy != "single":
        return
    for gpu in inventory.gpus:
        if gpu.mig_enabled and not gpu.mig:
            raise HostError(
                "invalid MIG configuration: at least one device with migEnabled=true was not "
                f"configured correctly: device {gpu.index} has no MIG devices configured",
                hint=f"make MIG devices, or {MIXED}",
            )
    if len({mig.profile for gpu in inventory.gpus for mig in gpu.mig}) > 1:
        raise HostError(
            "invalid MIG configuration: more than one MIG device type present on node", hint=MIXED
        )
    if has_gpus and has_mig:
        raise HostError(
            "all devices on the node must be configured with the same migEnabled value", hint=MIXED
        )


def _shared(
    devices: Mapping[str, list[Device]], replicas: Sequence[Replicas]
) -> dict[str, list[Device]]:
    shared = {name: list(of_name) for name, of_name in devices.items()}
    for rule in replicas:
        for device in _selected(devices.get(rule.name, []), rule):
            if device not in shared[rule.name]:
                raise HostError(
                    f"two rules of sharing apply to device {device.index} of {rule.name}"
                )
            shared[rule.name].remove(device)
            shared.setdefault(rule.rename or rule.name, []).extend(
                replace(device, id=f"{device.id}{SEPARATOR}{number}", is_replica=True)
                for number in range(rule.replicas)
            )
    return {name: of_name for name, of_name in shared.items() if of_name}


def _selected(devices: Sequence[Device], rule: Replicas) -> list[Device]:
    if rule.devices == "all" or not devices:
        return list(devices)
    if isinstance(rule.devices, int):
        if rule.devices > len(devices):
            raise HostError(
                f"requested {rule.devices} devices to be replicated, but only {len(devices)} "
                f"devices available of {rule.name}"
            )
        return list(devices[: rule.devices])
    selected = []
    for word in rule.devices:
        matches = [device for device in devices if word in (device.index, device.uuid)]
        if not matches:
            raise HostError(f"sharing names device {word!r}, which {rule.name} does not have")
        selected += [device for device in matches if device not in selected]
    return selected


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The parts of an answer that do not depend on the devices of a resource."""

    control_nodes: tuple[str, ...] = ()  # paths of the driver's nodes that every container needs
    imex_channels: tuple[int, ...] = ()
    features: tuple[str, ...] = ()  # the CDI classes beside GPUs for which a specification exists


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What an endpoint serves; replaced as a whole."""

    resource: Resource
    settings: Settings
    node: Node
    mode: ResourcesMode  # what it shares with the DRA driver of the same agent
    # writes what a replaced driver needs before a container gets devices; NvmlError while the
    # driver is being replaced
    look: Callable[[], Awaitable[None]]
    scores: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # the reason for each device that is not healthy, by id
    unhealthy: Mapping[str, str] = field(default_factory=dict)


def imex_channels(settings: Settings, existing: Collection[int], journal: Log) -> tuple[int, ...]:
    """Return the numbers of the channels in the settings that this machine has.

    HostError if a channel is missing, and the settings require it.
    """
    numbers = settings.imex_channel_ids
    if not numbers:
        return ()
    missing = [number for number in numbers if number not in existing]
    if missing and settings.imex_required:
        raise HostError(f"requested IMEX channel channel{missing[0]} does not exist")
    for number in missing:
        journal.warning(f"IMEX channel channel{number} does not exist: left out")
    return tuple(number for number in numbers if number in existing)
