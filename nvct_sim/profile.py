# SPDX-License-Identifier: Apache-2.0
"""Profiles of the nodes that can be simulated, read from the package's data files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from nvct.config import toml
from nvct.errors import UsageError

GPUS_PER_BOARD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpu:
    """A GPU of a node: its model, its position, and its initial MIG instances."""

    model: dict[str, Any]  # a table of models.toml, which describes the keys
    bus: str
    minor: int
    mig: tuple[str, ...] | None  # profile names of the MIG instances; None if MIG mode is off
    # NUMA node, host bridge, upper and lower PCIe switch, such as `0/0/1/0`; GPUs share the parts
    # of a common prefix
    path: str
    # peer of each NVLink: the index of a GPU, or `s` and the index of a switch
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of node; the GPUs are in NVML's order, sorted by bus id."""

    name: str
    driver: str
    cuda: str
    gpus: tuple[NodeGpu, ...]
    extras: dict[str, int]  # counts of devices other than GPUs, by the names in nodes.toml


def _data(name: str) -> dict[str, Any]:
    text = (resources.files("nvct_sim") / "profiles" / name).read_text("utf-8")
    return toml.loads(text)


def names() -> list[str]:
    """Return the names of all profiles."""
    return list(_data("nodes.toml"))


def load(name: str) -> Profile:
    """Return the profile with a name; UsageError if there is none."""
    nodes = _data("nodes.toml")
    if name not in nodes:
        raise UsageError(f"unknown profile {name!r}", hint=f"use one of {', '.join(nodes)}")
    models, node = _data("models.toml"), nodes[name]
    extras = node.get("extras", {})
    gpus = sorted(_gpus(node), key=lambda gpu: str(gpu["bus"]))
    node_gpus = tuple(
        NodeGpu(
            model=models[gpu["model"]], bus=gpu["bus"], minor=gpu["minor"],
            mig=tuple(gpu["mig"]) if "mig" in gpu else None, path=_path(gpu, index),
            links=_links(gpu, index, models[gpu["model"]], len(gpus), extras.get("nvswitch", 0)),
        )
        for index, gpu in enumerate(gpus)
    )  # fmt: skip
    return Profile(
        name=name, driver=node["driver"], cuda=node["cuda"], gpus=node_gpus, extras=extras
    )


def _gpus(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    repeated = (copy for gpu in node["gpus"] for copy in _repeated(gpu))
    for number, gpu in enumerate(repeated):
        yield {"minor": number, **gpu}


def _repeated(gpu: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a GPU `count` times, each on the next PCI bus."""
    domain, bus, slot = gpu["bus"].split(":")
    for step in range(gpu.get("count", 1)):
        yield {**gpu, "bus": f"{domain}:{int(bus, 16) + step:02X}:{slot}"}


def _path(gpu: dict[str, Any], index: int) -> str:
    """Return a GPU's path; the GPU has its own PCIe switch if the profile names none."""
    bus = int(gpu["bus"].split(":")[1], 16)
    parts = gpu["path"].split("/") if "path" in gpu else ["0", str(bus >> 7)]
    return "/".join([*parts, str(index), "0"][:4])


def _links(
    gpu: dict[str, Any], index: int, model: dict[str, Any], gpus: int, switches: int
) -> tuple[str, ...]:
    """Return the peers of a GPU's NVLinks: those in the profile, else its board's switches.

    A board has at most eight GPUs and an equal share of the switches.
    """
    if "links" in gpu or not switches:
        return tuple(str(peer) for peer in gpu.get("links", ()))
    boards = -(-gpus // GPUS_PER_BOARD)
    per_board = switches // boards
    first = index // GPUS_PER_BOARD * per_board
    return tuple(f"s{first + link % per_board}" for link in range(model["nvlinks"]))
