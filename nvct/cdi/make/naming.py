# SPDX-License-Identifier: Apache-2.0
"""Names of GPUs and MIG devices in a CDI spec, and the values of `--device-id`.

The names are nvidia-container-toolkit's: indices are NVML's, a MIG device is PARENT:INDEX.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from nvct.errors import HostError, UnknownDeviceError, UsageError
from nvct.host.model import Gpu, Inventory, MigDevice, NamedDevice

Selected: TypeAlias = tuple[Gpu, MigDevice | None]

STRATEGIES = ("index", "uuid", "type-index")
INDEX = re.compile(r"(0|[1-9][0-9]{0,8})(?::(0|[1-9][0-9]{0,8}))?")
UUID_WORD = re.compile(r"(GPU|MIG)-[0-9A-Fa-f/-]+|MIG-GPU-[0-9A-Fa-f/-]+")


def check_strategies(strategies: Sequence[str]) -> tuple[str, ...]:
    """Return the strategies without duplicates; UsageError if one is unknown, or none is given."""
    for strategy in strategies:
        if strategy not in STRATEGIES:
            raise UsageError(
                f"device name strategy {strategy!r} is unknown",
                hint=f"it is one of {', '.join(STRATEGIES)}",
            )
    if not strategies:
        raise UsageError("no device name strategy is given", hint="for instance index,uuid")
    return tuple(dict.fromkeys(strategies))


def names(gpu: Gpu, mig: MigDevice | None, strategies: Iterable[str]) -> list[str]:
    """Return the names of a GPU, or of one of its MIG devices."""
    index = str(gpu.index) if mig is None else f"{gpu.index}:{mig.index}"
    by_strategy = {
        "index": index,
        "uuid": gpu.uuid if mig is None else mig.uuid,
        "type-index": f"gpu{index}" if mig is None else f"mig{index}",
    }
    return [by_strategy[strategy] for strategy in strategies]


def select(inventory: Inventory, ids: Sequence[str]) -> list[Selected]:
    """Return the devices that ids name, without duplicates, in the machine's order.

    "all" names every GPU that is not in MIG mode and every MIG device; devices without a device
    node are not included. An explicit id must name a device that has one. Raises
    UnknownDeviceError if an id names nothing, and HostError if the device has no device node.
    """
    available = list(_available(inventory))
    if "all" in ids:
        return available
    chosen = {id(_device_of(inventory, available, word)) for word in ids}
    return [pair for pair in available if id(pair) in chosen]


def names_of(device: NamedDevice, strategies: Iterable[str], *, counts: bool) -> list[str]:
    """Return the names of a device in a mode other than nvml.

    A device without a UUID has no name by UUID; if no strategy gives a name, its own name is used.
    With `counts`, a name that is a number is a GPU's index, so 0 is gpu0 by type-index.
    """
    numbered = f"gpu{device.name}" if counts and device.name.isdigit() else device.name
    by_strategy = {"index": device.name, "uuid": device.uuid, "type-index": numbered}
    device_names = [by_strategy[strategy] for strategy in strategies if by_strategy[strategy]]
    return list(dict.fromkeys(device_names)) or [device.name]


def select_named(inventory: Inventory, ids: Sequence[str]) -> list[NamedDevice]:
    """Return the devices that ids name in a mode other than nvml. Raises UnknownDeviceError."""
    if "all" in ids:
        return list(inventory.devices)
    chosen = set()
    for word in ids:
        # As in nvidia-container-toolkit, an IMEX channel can be named like its node.
        name = word.removeprefix("channel") if inventory.mode == "imex" else word
        matches = [d.name for d in inventory.devices if name in (d.name, d.uuid)]
        if not name or not matches:
            listed = ", ".join(device.name for device in inventory.devices)
            raise UnknownDeviceError(
                f"no device {word!r} in mode {inventory.mode}", hint=f"there are: {listed}"[:88]
            )
        chosen.update(matches)
    return [device for device in inventory.devices if device.name in chosen]


def _available(inventory: Inventory) -> Iterator[Selected]:
    for gpu in inventory.gpus:
        if gpu.node is None or gpu.is_display_only:
            continue
        if gpu.mig_enabled:
            yield from ((gpu, mig) for mig in gpu.mig)
        else:
            yield gpu, None


def _device_of(inventory: Inventory, available: Sequence[Selected], word: str) -> Selected:
    from nvct.container.request.visible_devices import is_bus_id, plain_bus_id

    word = plain_bus_id(word)
    if not INDEX.fullmatch(word) and not UUID_WORD.fullmatch(word) and not is_bus_id(word):
        raise UnknownDeviceError(
            f"device id {word!r} is not a UUID, index or PCI bus id",
            hint="write 0, 0:1, GPU-..., MIG-..., a PCI bus id, all or none",
        )
    for pair in available:
        gpu, mig = pair
        other = gpu.bus_id if mig is None else old_uuid(gpu, mig)  # an id, but no name in specs
        if word in (*names(gpu, mig, ("index", "uuid")), other):
            return pair
    for gpu in inventory.gpus:
        if word not in (str(gpu.index), gpu.uuid, gpu.bus_id):
            continue
        if gpu.node is None:
            raise HostError(
                f"GPU {word} has no device node /dev/nvidia{gpu.minor}",
                hint="nvidia-modprobe makes it",
            )
        if gpu.mig_enabled:
            listed = ", ".join(f"{gpu.index}:{mig.index}" for mig in gpu.mig) or "none yet"
            raise UnknownDeviceError(
                f"GPU {word} is in MIG mode", hint=f"name one of its MIG devices: {listed}"[:88]
            )
    raise UnknownDeviceError(
        f"no device {word} among the {len(inventory.gpus)} GPUs of this machine",
        hint="nvidia-smi -L lists them",
    )


def old_uuid(gpu: Gpu, mig: MigDevice) -> str:
    """Return a MIG device's UUID before driver R470: MIG-<UUID of the GPU>/<gi>/<ci>."""
    return f"MIG-{gpu.uuid}/{mig.gi}/{mig.ci}"
