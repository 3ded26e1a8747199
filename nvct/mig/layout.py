# SPDX-License-Identifier: Apache-2.0
"""The layout of a GPU: MIG mode, GPU instances at their places, compute instances in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from nvct.host.nvml.mig_model import GpuInstance, MigGpu, MigProfile, Placement
from nvct.mig import names

COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1, 8: 7}
"""By NVML_COMPUTE_INSTANCE_PROFILE_*; nvml.h. 7 is 1_SLICE_REV1, 8 is 7_SLICE_NVL."""
COMPUTE_KINDS = {slices: kind for kind, slices in reversed(COMPUTE_SLICES.items())}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePart:
    """A compute instance.

    Attributes:
        kind: NVML_COMPUTE_INSTANCE_PROFILE_*.
        engine: NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_*.
        id: of an existing compute instance that this one is; None if any of that kind will do.
    """

    kind: int
    engine: int = 0
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A GPU instance.

    Attributes:
        kind: NVML_GPU_INSTANCE_PROFILE_*.
    """

    kind: int
    placement: Placement
    compute: tuple[ComputePart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout of a GPU. `parts` is empty if MIG mode is off."""

    enabled: bool
    parts: tuple[Part, ...] = ()


def layout_of(gpu: MigGpu) -> Layout:
    """Return the layout that a GPU has."""
    return Layout(enabled=gpu.enabled, parts=tuple(part_of(gi) for gi in gpu.instances))


def part_of(instance: GpuInstance) -> Part:
    """Return an existing GPU instance as a part; its compute instances keep their ids."""
    compute = (ComputePart(kind=c.kind, engine=c.engine, id=c.id) for c in instance.compute)
    return Part(kind=instance.kind, placement=instance.placement, compute=tuple(compute))


def device_name(profile: MigProfile, kind: int) -> str:
    """Return the name of a MIG device by its GPU instance's profile and compute kind."""
    whole = names.parse(profile.name)
    compute = COMPUTE_SLICES.get(kind, whole.slices)
    return str(names.ProfileName(compute, whole.slices, whole.gigabytes, whole.attributes))


def devices(gpu: MigGpu, layout: Layout) -> Counter[str]:
    """Return how many MIG devices of each name a layout has; one device a compute instance."""
    profiles = {profile.kind: profile for profile in gpu.profiles}
    return Counter(
        device_name(profiles[part.kind], compute.kind)
        for part in layout.parts
        if part.kind in profiles
        for compute in part.compute
    )


def is_same(first: Layout, second: Layout) -> bool:
    """Return whether two layouts are equal, whatever the order and the ids."""
    return first.enabled == second.enabled and _plain(first) == _plain(second)


def _plain(layout: Layout) -> list[tuple[int, Placement, list[tuple[int, int]]]]:
    return sorted(
        (p.kind, p.placement, sorted((c.kind, c.engine) for c in p.compute)) for p in layout.parts
    )
