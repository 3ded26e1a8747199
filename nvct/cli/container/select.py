# SPDX-License-Identifier: Apache-2.0
"""Selects the devices of `nvidia-container-cli --device`, by libnvidia-container's rules.

Each word of the comma list is matched in this order: all, GPU-<uuid>, PCI bus id, index,
MIG-<uuid>, G:M. UUIDs are complete and ignore case. Empty words are skipped; words after "all"
are not read. (libnvidia-container reads 0:1xyz as 0:1; here that names no device.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nvct.errors import RequestError, UnknownDeviceError
from nvct.host.model import Gpu, Inventory, MigDevice

BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.0)?", re.IGNORECASE)
MIG_INDEX = re.compile(r"(\d{1,9}):(\d{1,9})")
INDEX = re.compile(r"\d{1,9}")
UUID = re.compile(r"(GPU|MIG)-[^,]+", re.IGNORECASE)
HINT = "nvidia-container-cli info lists the GPUs, nvidia-smi -L MIG devices too"


@dataclass(slots=True)
class Selected:
    """The selected devices, without duplicates, in the order of the command line.

    Attributes:
        everything: "all" was requested.
        gpus: including the GPUs of requested MIG devices.
        migs: with their GPUs.
    """

    everything: bool = False
    gpus: list[Gpu] = field(default_factory=list)
    migs: list[tuple[Gpu, MigDevice]] = field(default_factory=list)

    def add(self, gpu: Gpu, mig: MigDevice | None = None) -> None:
        """Add a device, unless it is already selected."""
        if gpu not in self.gpus:
            self.gpus.append(gpu)
        if mig is not None and (gpu, mig) not in self.migs:
            self.migs.append((gpu, mig))


def bus_id(text: str) -> str:
    """Return a PCI bus id in libnvidia-container's form, "" if the text is not a bus id."""
    match = BUS_ID.fullmatch(text)
    if not match:
        return ""
    domain, bus, device = (int(part, 16) for part in match.groups())
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def select(device_list: str | None, inventory: Inventory) -> Selected:
    """Return the devices that a comma list names; None selects nothing.

    Raises:
        UnknownDeviceError: a word names no device.
    """
    selected = Selected()
    if not inventory.gpus:
        return selected  # as libnvidia-container: words are not checked on a host without GPUs
    for word in (device_list or "").split(","):
        if not word:
            continue
        if word.lower() == "all":
            for gpu in inventory.gpus:
                selected.add(gpu)
                for mig in gpu.mig:
                    selected.add(gpu, mig)
            selected.everything = True
            break
        _add(word, inventory, selected)
    return selected


def _add(word: str, inventory: Inventory, selected: Selected) -> None:
    bus = bus_id(word)
    for gpu in inventory.gpus:
        is_same_bus = bus and bus == bus_id(gpu.bus_id)
        if gpu.uuid.lower() == word.lower() or is_same_bus:
            selected.add(gpu)
            return
    if INDEX.fullmatch(word) and int(word) < len(inventory.gpus):
        selected.add(inventory.gpus[int(word)])
        return
    indexes = MIG_INDEX.fullmatch(word)
    for gpu in inventory.gpus:
        for mig in gpu.mig:
            pair = indexes and (int(indexes[1]), int(indexes[2])) == (gpu.index, mig.index)
            if mig.uuid.lower() == word.lower() or pair:
                selected.add(gpu, mig)
                return
    raise UnknownDeviceError(f"device error: {word}: unknown device", hint=HINT)


def select_mig_capable(
    option_value: str | None, name: str, visible: Selected, capable: set[int]
) -> list[Gpu] | None:
    """Return the visible GPUs for --mig-config or --mig-monitor, None if the option is empty.

    Args:
        option_value: of the command line; only "all" is valid.
        capable: minors of the GPUs that support MIG.

    Raises:
        RequestError: the value names a device, or only some MIG devices are visible.
    """
    for word in (option_value or "").split(","):
        if not word:
            continue
        if word.lower() != "all":
            raise RequestError(
                f"{name} error: {word}: only 'all' devices are supported",
                hint=f"write --{name}=all",
            )
        if visible.migs and not visible.everything:
            raise RequestError(
                f"{name} error: it is about whole GPUs, and --device names MIG devices",
                hint="write --device=all, or the index of a GPU",
            )
        return [gpu for gpu in visible.gpus if gpu.minor in capable]
    return None
