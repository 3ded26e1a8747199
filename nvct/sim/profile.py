# SPDX-License-Identifier: Apache-2.0
"""The kinds of nodes that can be simulated, read from the package's data files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

from nvct.errors import UsageError


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
class Profile:
    """A kind of node; its GPUs are in NVML's order, which is that of the bus ids."""

    name: str
    driver: str
    cuda: str
    gpus: tuple[GpuPlace, ...]


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
    places = [
        GpuPlace(
            model=models[gpu["model"]],
            bus=gpu["bus"],
            minor=gpu.get("minor", number),
            mig=tuple(gpu["mig"]) if "mig" in gpu else None,
        )
        for number, gpu in enumerate(nodes[name]["gpus"])
    ]
    places.sort(key=lambda place: place.bus)
    node = nodes[name]
    return Profile(name=name, driver=node["driver"], cuda=node["cuda"], gpus=tuple(places))
