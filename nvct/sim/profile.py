# SPDX-License-Identifier: Apache-2.0
"""The kinds of nodes that can be simulated, read from the package's data files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A GPU instance profile: what NVML says of it, and the compute instance that fills it."""

    id: int
    kind: int
    name: str
    slices: int
    media: int
    sm: int
    memory: int
    max: int
    ci: int
    placements: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A GPU model: what NVML and the PCI configuration space say of it."""

    name: str
    memory: int
    cc: str
    arch: int
    brand: int
    device: int
    subsystem: int
    power: int
    temp: int
    migcapable: int
    vbios: str
    gsp: str
    mig: tuple[MigProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """A GPU of a node: its model, where it sits, and the MIG instances that it starts with.

    Attributes:
        mig: names of MIG profiles; None where MIG mode is off.
    """

    model: Model
    bus: str
    minor: int
    mig: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a node has beside its GPUs: how many of each, 0 for none.

    Attributes:
        nvswitch: switches, with their control node and the fabric manager.
        imex: channels for memory of other nodes.
        nvidia_fs: nodes of GPUDirect Storage.
        gdrdrv: 1 for GDRCopy's node.
        uverbs: InfiniBand devices, with the connection manager's node.
    """

    nvswitch: int = 0
    imex: int = 0
    nvidia_fs: int = 0
    gdrdrv: int = 0
    uverbs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of node; its GPUs are in NVML's order, which is that of the bus ids."""

    name: str
    driver: str
    cuda: str
    gpus: tuple[GpuPlace, ...]
    extras: Extras


def _data(name: str) -> dict[str, Any]:
    text = (resources.files("nvct.sim") / "profiles" / name).read_text("utf-8")
    # tomli is the same parser for Python 3.10.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    content: dict[str, Any] = toml.loads(text)
    return content


def names() -> list[str]:
    """Return the names of all profiles."""
    return list(_data("nodes.toml"))


def load(name: str) -> Profile:
    """Return the profile of this name.

    Raises:
        UsageError: there is none.
    """
    nodes = _data("nodes.toml")
    if name not in nodes:
        raise UsageError(f"unknown profile {name!r}", hint=f"one of {', '.join(nodes)}")
    models = {
        key: Model(**{**value, "mig": tuple(MigProfile(**p) for p in value["mig"])})
        for key, value in _data("models.toml").items()
    }
    node = nodes[name]
    places = [
        GpuPlace(
            model=models[gpu["model"]],
            bus=gpu["bus"],
            minor=gpu.get("minor", number),
            mig=tuple(gpu["mig"]) if "mig" in gpu else None,
        )
        for number, gpu in enumerate(one for gpu in node["gpus"] for one in _repeated(gpu))
    ]
    places.sort(key=lambda place: place.bus)
    return Profile(
        name=name, driver=node["driver"], cuda=node["cuda"], gpus=tuple(places),
        extras=Extras(**node.get("extras", {})),
    )  # fmt: skip


def _repeated(gpu: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a GPU `count` times, each on the next PCI bus."""
    domain, bus, place = gpu["bus"].split(":")
    for step in range(gpu.get("count", 1)):
        yield {**gpu, "bus": f"{domain}:{int(bus, 16) + step:02X}:{place}"}
