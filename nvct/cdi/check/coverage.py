# SPDX-License-Identifier: Apache-2.0
"""Compares the GPUs in CDI specs with those of a machine.

Contract: values only, no I/O. A GPU is identified by its nodes' container paths, which contain its
minor; a device's name (index or UUID) says which GPU the spec means. Specs without GPUs (IMEX
channels, other vendors) and specs of mode management are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nvct.cdi.check.conflicts import Drift, EffectiveSpec, Kind
from nvct.cdi.make import naming
from nvct.cdi.make.naming import Selected
from nvct.cdi.types import ContainerEdits, Device
from nvct.host.model import Inventory

Paths: TypeAlias = frozenset[str]

GPU_NODE = re.compile(r"/dev/nvidia\d+")
NODE = re.compile(r"/dev/nvidia\d+|/dev/nvidia-caps/nvidia-cap\d+")
MIG_NAME = re.compile(r"MIG-.*|(?:mig)?\d+:\d+")
NAME = re.compile(rf"{naming.UUID_WORD.pattern}|{naming.INDEX.pattern}|gpu\d+|mig\d+:\d+")
NOT_GIVEN = "no CDI spec gives "
# The nodes that the driver needs in every container with CUDA
# (`nvct.host.gpu.nodes.CONTROL_NODES`).
NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
NAMED = 3  # Devices that a sentence names; the others are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """The GPUs of a machine, by the names that specs use."""

    # each GPU and MIG device that containers can get, and its nodes
    pairs: tuple[tuple[Selected, Paths], ...]
    nodes: dict[str, Paths]  # name -> nodes, by all naming strategies
    unavailable: dict[str, str]  # name -> the reason that no container can get an existing GPU
    no_mig: bool  # whether MIG devices may exist that could not be listed


def compare(specs: Sequence[EffectiveSpec], live: Inventory) -> tuple[list[Drift], list[Drift]]:
    """Return the differences between the GPUs and MIG devices of specs and of a machine.

    The second list has the devices that no spec gives, perhaps because an admin excluded them.
    """
    machine = _machine(live)
    gpu_specs = [spec for spec in specs if _is_of_gpus(spec)]
    drifts: list[Drift] = []
    for spec in gpu_specs:
        drifts += _control_nodes(spec, live)
        drifts += _devices(spec, machine)
    spec_paths = {
        _nodes(device.get("containerEdits")) for spec in gpu_specs for device in spec.devices
    }
    missing = [
        _unlisted(pair)
        for pair, nodes in machine.pairs
        if not any(nodes <= paths for paths in spec_paths)
    ]
    return drifts, missing


def gives_cuda(edits: ContainerEdits) -> bool:
    """Return whether edits mount libcuda, as a file or in a view."""
    paths = [mount["hostPath"] for mount in edits.get("mounts", ())]
    paths += [word for hook in edits.get("hooks", ()) for word in hook.get("args", ())]
    return any("/libcuda.so." in path for path in paths)


def _machine(live: Inventory) -> _Machine:
    pairs = tuple((pair, _paths_of(pair)) for pair in naming.select(live, ("all",)))
    return _Machine(
        pairs=pairs,
        nodes={
            name: nodes for pair, nodes in pairs for name in naming.names(*pair, naming.STRATEGIES)
        },
        unavailable={
            name: "is in MIG mode now" if gpu.mig_enabled and gpu.node else ""
            for gpu in live.gpus
            if gpu.mig_enabled or gpu.node is None
            for name in naming.names(gpu, None, naming.STRATEGIES)
        },
        # Without a warning, NVML was asked, and reported no MIG device.
        no_mig=bool(live.warnings) and any(gpu.mig_enabled and not gpu.mig for gpu in live.gpus),
    )


def _paths_of(pair: Selected) -> Paths:
    gpu, mig = pair
    nodes = [gpu.node] if gpu.node else []
    return frozenset(node.path for node in (*nodes, *(mig.nodes if mig else ())))


def _nodes(edits: ContainerEdits | None) -> Paths:
    paths = (node["path"] for node in (edits or {}).get("deviceNodes", ()))
    return frozenset(path for path in paths if NODE.fullmatch(path))


def _is_of_gpus(spec: EffectiveSpec) -> bool:
    if spec.kind.startswith("management."):
        return False
    return any(
        GPU_NODE.fullmatch(path)
        for device in spec.devices
        for path in _nodes(device.get("containerEdits"))
    )


def _control_nodes(spec: EffectiveSpec, live: Inventory) -> Iterable[Drift]:
    """Yield the nodes that were made after the spec, because nvidia-uvm is loaded late."""
    common = spec.file.spec.get("containerEdits") or {}
    if not gives_cuda(common):
        return
    all_edits = (common, *(device.get("containerEdits") or {} for device in spec.devices))
    spec_paths = {node["path"] for edits in all_edits for node in edits.get("deviceNodes", ())}
    for node in live.control_nodes:
        if node.path in NEEDED and node.path not in spec_paths:
            text = f"{node.host_path} exists now, but the spec does not give it"
            yield spec.drift("node-missing", text, node.host_path)


def _devices(spec: EffectiveSpec, machine: _Machine) -> list[Drift]:
    """Return the missing and changed devices; the devices of one GPU are one difference."""
    problems: dict[tuple[Kind, str], list[str]] = {}
    for device in spec.devices:
        if problem := _problem(device, machine):
            problems.setdefault(problem, []).append(spec.name(device))
    return [
        spec.drift(kind, f"{_listed(names)}: {sentence}", devices=tuple(names))
        for (kind, sentence), names in problems.items()
    ]


def _listed(names: Sequence[str]) -> str:
    if len(names) <= NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def _problem(device: Device, machine: _Machine) -> tuple[Kind, str] | None:
    name, spec_paths = device["name"], _nodes(device.get("containerEdits"))
    is_mig = bool(MIG_NAME.fullmatch(name))
    if not NAME.fullmatch(name):
        return None
    if name in machine.nodes:
        current = machine.nodes[name]
        if spec_paths == current:
            return None
        text = f"the spec gives {_shown(spec_paths)}, but it has {_shown(current)} now"
        return ("mig-moved" if is_mig else "gpu-moved"), text
    if name in machine.unavailable:
        # A missing node is reported as another difference.
        return ("gpu-gone", machine.unavailable[name]) if machine.unavailable[name] else None
    if is_mig:
        return None if machine.no_mig else ("mig-gone", "the host has no such MIG device")
    return "gpu-gone", "the host has no such GPU"


def _unlisted(pair: Selected) -> Drift:
    gpu, mig = pair
    if mig is None:
        return Drift(
            kind="gpu-missing",
            source="",
            path=gpu.node.host_path if gpu.node else "",
            sentence=f"{NOT_GIVEN}GPU {gpu.index} ({gpu.uuid})",
        )
    return Drift(
        kind="mig-missing",
        source="",
        sentence=f"{NOT_GIVEN}MIG device {gpu.index}:{mig.index} ({mig.uuid})",
    )


def _shown(paths: Paths) -> str:
    return " ".join(sorted(paths)) or "no GPU"
