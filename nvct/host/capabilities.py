# SPDX-License-Identifier: Apache-2.0
"""Filters an inventory by driver capabilities, as NVIDIA_DRIVER_CAPABILITIES names them.

Contract: pure functions. Files without a capability stay. The libraries that a library needs stay
with it, so that every program starts. All other files are left out with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from nvct.errors import HostError, UsageError
from nvct.host.driver import names as driver_names
from nvct.host.model import (
    Capability,
    DeviceNode,
    DriverFile,
    Gpu,
    Inventory,
    LeftOut,
    NamedDevice,
)

NAMES: tuple[Capability, ...] = (
    "compute", "utility", "graphics", "video", "display", "ngx", "compat32",
)  # fmt: skip
# CDI specs of nvidia-container-toolkit v1.20 include everything except 32-bit libraries.
DEFAULT: frozenset[Capability] = frozenset(NAMES) - {"compat32"}
# As libnvidia-container: CUDA's libraries decode video, and a display shows graphics.
IMPLIED: dict[Capability, Capability] = {"video": "compute", "display": "graphics"}
# An implied capability adds libraries and data, which programs load or open, but no files of these
# kinds: a container gets a program or socket only if it requests its capability by name.
EXPLICIT_KINDS = ("binary", "socket")


class _Request(NamedTuple):
    """The requested capabilities; `all` has also the capabilities that they imply."""

    named: frozenset[Capability]
    all: frozenset[Capability]

    def reason(self, capability: str) -> str:
        return f"for {capability}; requested: {', '.join(sorted(self.named)) or 'none'}"


def parse(words: Iterable[str]) -> frozenset[Capability]:
    """Return the capabilities of words or comma-separated lists; no word means "all".

    "all" is every capability except compat32, which must be named. UsageError if a word is not a
    capability.
    """
    requested = [word.strip() for part in words for word in part.split(",") if word.strip()]
    for word in requested:
        if word != "all" and word not in NAMES:
            raise UsageError(
                f"capability {word!r} is unknown", hint=f"use all, or any of {' '.join(NAMES)}"
            )
    named = frozenset(cast("Capability", word) for word in requested if word != "all")
    return named | DEFAULT if "all" in requested or not requested else named


def restrict(inventory: Inventory, requested: Iterable[Capability]) -> Inventory:
    """Return an inventory with the files and nodes that have one of these capabilities or none."""
    rule = _rule(requested)
    removed: dict[str, LeftOut] = {}
    restricted = replace(
        inventory,
        files=_files(inventory.files, rule, removed),
        control_nodes=_nodes(inventory.control_nodes, rule, removed),
        devices=tuple(_device(device, rule, removed) for device in inventory.devices),
        gpus=tuple(_gpu(gpu, rule, removed) for gpu in inventory.gpus),
    )
    left_out = {entry.path: entry for entry in inventory.left_out} | removed
    return replace(restricted, left_out=tuple(entry for _, entry in sorted(left_out.items())))


def check_libcuda(inventory: Inventory, requested: frozenset[Capability]) -> None:
    """Raise HostError if compute is requested, and the driver has no libcuda.

    nvidia-ctk 1.17 fails as well: it searches the driver's libraries beside libcuda.
    """
    if inventory.mode != "nvml" or not inventory.gpus or "compute" not in requested:
        return
    names = (os.path.basename(file.container_path) for file in inventory.files)
    if not any(name.startswith("libcuda.so.") for name in names):
        raise HostError(
            f"the driver {inventory.driver_version} has no libcuda.so: no GPU can compute with it",
            hint="install it (libcuda1, nvidia-driver-cuda-libs), or name other --capabilities",
        )


def files_by_capability(
    files: Sequence[DriverFile], also: tuple[Capability, ...] = ()
) -> dict[Capability, tuple[DriverFile, ...]]:
    """Return by capability, except compat32, the files that it adds to the files under "".

    A file can occur under several capabilities. `also` is requested together with each of them.
    """
    base = files_of(files, also)
    shares: dict[Capability, tuple[DriverFile, ...]] = {"": base}
    for name in sorted(DEFAULT):
        shares[name] = tuple(f for f in files_of(files, (name, *also)) if f not in base)
    return shares


def files_of(files: Sequence[DriverFile], names: Iterable[Capability]) -> tuple[DriverFile, ...]:
    """Return the files that these capabilities need, and the files that every container gets."""
    return _files(files, _rule(names), {})


def nodes_by_capability(nodes: Sequence[DeviceNode]) -> dict[Capability, tuple[DeviceNode, ...]]:
    """Return the nodes of each capability, and under "" the nodes that every container gets."""
    names: tuple[Capability, ...] = ("", *NAMES)
    return {
        name: tuple(n for n in nodes if n.capability in {name, IMPLIED.get(name, name)})
        for name in names
    }


def _rule(names: Iterable[Capability]) -> _Request:
    named = frozenset(names)
    return _Request(named, named | {IMPLIED[name] for name in named if name in IMPLIED})


def _files(
    files: Sequence[DriverFile], request: _Request, removed: dict[str, LeftOut]
) -> tuple[DriverFile, ...]:
    kept = {file.host_path for file in files if _is_kept(file, request)}
    for compat in (False, True):
        kept |= _linked([f for f in files if (f.capability == "compat32") is compat], kept)
    for file in files:
        if file.host_path not in kept:
            reason = request.reason(file.capability)
            removed[file.host_path] = LeftOut(path=file.host_path, reason=reason)
    return tuple(file for file in files if file.host_path in kept)


def _is_kept(file: DriverFile, request: _Request) -> bool:
    capability = file.capability
    if capability == "" or capability in request.named:
        # A 32-bit library also has the capability of its name.
        own = driver_names.class_of(os.path.basename(file.host_path))
        return capability != "compat32" or own == "" or _serves(file, request)
    if capability == "compat32" or file.kind in EXPLICIT_KINDS:
        return False
    return capability in request.all or (file.kind == "library" and _serves(file, request))


def _serves(file: DriverFile, request: _Request) -> bool:
    name = os.path.basename(file.host_path)
    also = driver_names.ALSO.get(driver_names.stem(name), ())
    return not request.all.isdisjoint({driver_names.class_of(name), *also})


def _linked(files: Sequence[DriverFile], kept: set[str]) -> set[str]:
    by_name = {name: file for file in files for name in (file.soname, *_link_names(file)) if name}
    members: set[str] = set()
    queue = [file for file in files if file.host_path in kept]
    while queue:
        for name in queue.pop().needed:
            member = by_name.get(name)
            if member and member.host_path not in members | kept:
                members.add(member.host_path)
                queue.append(member)
    return members


def _link_names(file: DriverFile) -> list[str]:
    paths = (file.container_path, *(link.path for link in file.links))
    return [os.path.basename(path) for path in paths] if file.kind == "library" else []


def _nodes(
    nodes: Sequence[DeviceNode], request: _Request, removed: dict[str, LeftOut]
) -> tuple[DeviceNode, ...]:
    """Return the nodes that stay; CUDA's nodes stay for video, too, which runs on CUDA."""
    for node in nodes:
        if node.capability and node.capability not in request.all:
            reason = request.reason(node.capability)
            removed[node.host_path] = LeftOut(path=node.host_path, reason=reason)
    return tuple(node for node in nodes if not node.capability or node.capability in request.all)


def _gpu(gpu: Gpu, request: _Request, removed: dict[str, LeftOut]) -> Gpu:
    drm = _nodes(gpu.drm_nodes, request, removed)
    names = {os.path.basename(node.path) for node in drm}
    links = tuple(link for link in gpu.by_path if os.path.basename(link.target) in names)
    return replace(gpu, drm_nodes=drm, by_path=links)


def _device(device: NamedDevice, request: _Request, removed: dict[str, LeftOut]) -> NamedDevice:
    nodes = _nodes(device.nodes, request, removed)
    return replace(device, nodes=nodes, files=_files(device.files, request, removed))
