# SPDX-License-Identifier: Apache-2.0
"""The changes that lead a GPU from its layout to another; instances that stay are not touched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from nvct.host.nvml.mig_model import ComputeInstance, GpuInstance, MigGpu
from nvct.mig.layout import ComputePart, Layout, Part

Step: TypeAlias = "DestroyCompute | Destroy | SetMode | Create | CreateCompute"


@dataclass(frozen=True, slots=True)
class DestroyCompute:
    """Destroy a compute instance."""

    gi: int
    ci: int


@dataclass(frozen=True, slots=True)
class Destroy:
    """Destroy a GPU instance without compute instances."""

    gi: int


@dataclass(frozen=True, slots=True)
class SetMode:
    """Set the MIG mode."""

    enabled: bool


@dataclass(frozen=True, slots=True)
class Create:
    """Create a GPU instance and its compute instances."""

    part: Part


@dataclass(frozen=True, slots=True)
class CreateCompute:
    """Create a compute instance in a GPU instance that stays."""

    gi: int
    compute: ComputePart


def steps(gpu: MigGpu, layout: Layout) -> list[Step]:
    """Return the changes in their order: destroy, set the mode, create."""
    kept: list[tuple[GpuInstance, Part]] = []
    missing = []
    free = list(gpu.instances)
    for part in layout.parts:
        same = next(
            (gi for gi in free if (gi.kind, gi.placement) == (part.kind, part.placement)), None
        )
        if same is None:
            missing.append(part)
        else:
            free.remove(same)
            kept.append((same, part))
    result: list[Step] = []
    for gi in free:
        result += [DestroyCompute(gi.id, ci.id) for ci in gi.compute]
        result.append(Destroy(gi.id))
    created: list[Step] = []
    for gi, part in kept:
        excess, lacking = _compute_changes(gi, part)
        result += [DestroyCompute(gi.id, ci.id) for ci in excess]
        created += [CreateCompute(gi.id, compute) for compute in lacking]
    if gpu.enabled != layout.enabled or gpu.pending != layout.enabled:
        result.append(SetMode(layout.enabled))
    return [*result, *created, *(Create(part) for part in missing)]


def from_nothing(gpu: MigGpu, layout: Layout) -> list[Step]:
    """Return the changes that destroy all instances first."""
    return [*steps(gpu, Layout(enabled=gpu.enabled)), *steps(replace(gpu, instances=()), layout)]


def _compute_changes(
    gi: GpuInstance, part: Part
) -> tuple[list[ComputeInstance], list[ComputePart]]:
    """Return the compute instances in excess, and those that are missing."""
    excess = list(gi.compute)
    lacking = []
    for wanted in sorted(part.compute, key=lambda each: each.id is None):
        same = [ci for ci in excess if (ci.kind, ci.engine) == (wanted.kind, wanted.engine)]
        chosen = next((ci for ci in same if ci.id == wanted.id), next(iter(same), None))
        if chosen is None:
            lacking.append(wanted)
        else:
            excess.remove(chosen)
    return excess, lacking
