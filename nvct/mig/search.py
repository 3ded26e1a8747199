# SPDX-License-Identifier: Apache-2.0
"""Computes the places of MIG instances by an exhaustive, deterministic search.

The search finds a layout whenever one exists. It prefers layouts that keep the most MIG devices in
use, then those that keep the most MIG devices, then the layout that a GPU without instances would
get.

Rules of NVML: memory slices of GPU instances do not overlap; all GPU instances together have no
more compute slices than the largest profile; each profile has a limit. Within its GPU instance, a
compute instance gets the first free neighbouring slices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations

from nvct.errors import UsageError
from nvct.host.nvml.mig_model import ComputeInstance, GpuInstance, MigGpu, MigProfile, Placement
from nvct.mig import layout
from nvct.mig.layout import COMPUTE_KINDS, ComputePart, Layout, Part, devices

Kept = tuple[tuple[GpuInstance, ComputeInstance], ...]


@dataclass(slots=True)
class _Bin:
    """A GPU instance that is being filled with compute instances."""

    profile: MigProfile
    existing: GpuInstance | None = None
    used: int = 0  # a bit for each compute slice
    compute: list[ComputePart] = field(default_factory=list)

    def fit(self, slices: int) -> int:
        """Return the bits of the first free neighbouring slices, 0 if there are none."""
        for start in range(self.profile.slices - slices + 1):
            bits = ((1 << slices) - 1) << start
            if not self.used & bits:
                return bits
        return 0


def layout_for(
    gpu: MigGpu, wish: Mapping[str, int], held: Collection[tuple[int, int]] = ()
) -> Layout:
    """Return the layout with exactly these MIG devices.

    UsageError if the GPU has no such profile, or no layout exists. `held` are the ids of GPU and
    compute instances in use, which are kept first.
    """
    wanted = _wanted(gpu, wish)
    if not wanted:
        return Layout(enabled=True)
    is_too_much = wanted.total() > max(profile.slices for profile in gpu.profiles)
    fresh = None if is_too_much else _arrange(gpu, wanted, ())
    if fresh is None:
        raise _no_room(gpu, wanted)
    places = {(part.kind, part.placement) for part in fresh.parts}

    def loss(kept: Kept) -> tuple[int, int, int]:
        used = sum((gi.id, ci.id) in held for gi, ci in kept)
        strangers = sum((gi.kind, gi.placement) not in places for gi, _ in kept)
        return -used, -len(kept), strangers

    existing = sorted(
        ((gi, ci) for gi in gpu.instances for ci in gi.compute),
        key=lambda pair: (pair[0].placement, pair[0].kind, pair[1].start),
    )
    sets = (combinations(existing, count) for count in range(1, len(existing) + 1))
    for kept in sorted(chain.from_iterable(sets), key=loss):
        found = _arrange(gpu, wanted, kept)
        if found is not None:
            return found
    return fresh


def _wanted(gpu: MigGpu, wish: Mapping[str, int]) -> Counter[str]:
    """Return the wish by canonical names, without zeros."""
    known = {str(layout.parse_profile(profile.name)) for profile in gpu.profiles}
    wanted: Counter[str] = Counter()
    for text, count in wish.items():
        name = layout.parse_profile(text)
        if name.gpu_instance not in known or name.compute not in COMPUTE_KINDS:
            raise UsageError(
                f"GPU {gpu.index} ({gpu.name}) has no MIG profile {text}",
                hint=f"nothing was changed; it has {', '.join(p.name for p in gpu.profiles)}",
            )
        if count:
            wanted[str(name)] += count
    return wanted


def _arrange(gpu: MigGpu, wanted: Counter[str], kept: Kept) -> Layout | None:
    profiles = {profile.kind: profile for profile in gpu.profiles}
    bins: list[_Bin] = []
    for gi, ci in kept:
        if gi.kind not in profiles:
            return None
        if not bins or bins[-1].existing is not gi:
            bins.append(_Bin(profiles[gi.kind], gi))
        bins[-1].used |= ((1 << ci.size) - 1) << ci.start
        bins[-1].compute.append(ComputePart(kind=ci.kind, engine=ci.engine, id=ci.id))
    missing = wanted.copy()
    missing.subtract(devices(gpu, Layout(enabled=True, parts=tuple(map(_kept_part, bins)))))
    if any(count < 0 for count in missing.values()):
        return None
    by_name = {str(layout.parse_profile(profile.name)): profile for profile in gpu.profiles}
    items = sorted((layout.parse_profile(name) for name in missing.elements()), key=_largest_first)
    limit = max(profile.slices for profile in gpu.profiles)
    for filled in _fillings(bins, items, by_name, limit):
        parts = _place(filled)
        if parts is not None:
            return Layout(enabled=True, parts=parts)
    return None


def _largest_first(name: layout.ProfileName) -> tuple[int, int, tuple[int, ...], int]:
    """Return a sort key as in NVIDIA's program: slices, compute slices, attributes, descending."""
    return -name.slices, -name.compute, (*(-ord(c) for c in name.attributes), 1), name.gigabytes


def _fillings(
    bins: list[_Bin],
    items: Sequence[layout.ProfileName],
    profiles: Mapping[str, MigProfile],
    limit: int,
) -> Iterator[list[_Bin]]:
    """Yield the ways to put compute instances into existing and new GPU instances.

    Ways with more GPU instances than needed come later. Each yields the same list, changed.
    """
    if sum(each.profile.slices for each in bins) > limit:
        return
    if not items:
        yield bins
        return
    first, rest = items[0], items[1:]
    profile = profiles[first.gpu_instance]
    tried: set[tuple[int, int, bool]] = set()
    for each in [*bins, None]:
        target = each or _Bin(profile)
        bits = target.fit(first.compute) if target.profile.kind == profile.kind else 0
        key = (target.used, len(target.compute), target.existing is None)
        if not bits or (key in tried and target.existing is None):
            continue
        tried.add(key)
        if each is None:
            bins.append(target)
        target.used |= bits
        target.compute.append(ComputePart(kind=COMPUTE_KINDS[first.compute]))
        yield from _fillings(bins, rest, profiles, limit)
        target.compute.pop()
        target.used &= ~bits
        if each is None:
            bins.pop()


def _place(bins: Sequence[_Bin]) -> tuple[Part, ...] | None:
    counts: dict[int, int] = {}
    used = 0
    for each in bins:
        counts[each.profile.kind] = counts.get(each.profile.kind, 0) + 1
        if counts[each.profile.kind] > each.profile.limit:
            return None
        if each.existing:
            used |= _bits(each.existing.placement)
    new = [each for each in bins if each.existing is None]
    places = _places([each.profile for each in new], used)
    if places is None:
        return None
    found = [_kept_part(each) for each in bins if each.existing]
    for each, placement in zip(new, places, strict=True):
        part = Part(kind=each.profile.kind, placement=placement, compute=tuple(each.compute))
        found.append(part)
    return tuple(found)


def _places(profiles: Sequence[MigProfile], used: int) -> list[Placement] | None:
    if not profiles:
        return []
    for placement in sorted(profiles[0].placements):
        bits = _bits(placement)
        if not used & bits:
            rest = _places(profiles[1:], used | bits)
            if rest is not None:
                return [placement, *rest]
    return None


def _bits(placement: Placement) -> int:
    return ((1 << placement.size) - 1) << placement.start


def _kept_part(each: _Bin) -> Part:
    assert each.existing is not None  # noqa: S101 - for the type checker
    return Part(
        kind=each.existing.kind, placement=each.existing.placement, compute=tuple(each.compute)
    )


def _no_room(gpu: MigGpu, wanted: Mapping[str, int]) -> UsageError:
    wish = ", ".join(f"{count} x {name}" for name, count in wanted.items())
    if not any(profile.placements for profile in gpu.profiles):
        return UsageError(
            f"NVML does not say where GPU {gpu.index} ({gpu.name}) can have MIG instances",
            hint="nothing was changed; NVML may say so in MIG mode: apply with --mode-only first",
        )
    return UsageError(
        f"GPU {gpu.index} ({gpu.name}) has no room for {wish}",
        hint="nothing was changed; ask for less",
    )
