# SPDX-License-Identifier: Apache-2.0
"""The search for a layout, against brute force over all sets of placements."""

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvct.errors import UsageError
from nvct.host.nvml.mig_model import ComputeInstance, GpuInstance, MigGpu
from nvct.mig import tables
from nvct.mig.layout import COMPUTE_SLICES, Layout, devices, is_same
from nvct.mig.search import layout_for

TABLES = tables.tables()
SEVEN = tables.gpu_of(tables.of_name("A100 80GB"))
FOUR = tables.gpu_of(tables.of_name("A30"))


def with_layout(gpu: MigGpu, layout: Layout) -> MigGpu:
    """Return the GPU with the instances of a layout; compute instances one after the other."""
    instances = []
    for number, part in enumerate(layout.parts):
        compute, start = [], 0
        for index, each in enumerate(part.compute):
            size = COMPUTE_SLICES[each.kind]
            compute.append(
                ComputeInstance(id=index, kind=each.kind, engine=0, start=start, size=size)
            )
            start += size
        instances.append(
            GpuInstance(
                id=number, kind=part.kind, placement=part.placement, compute=tuple(compute)
            )
        )
    return replace(gpu, enabled=True, pending=True, instances=tuple(instances))


def is_valid(gpu: MigGpu, layout: Layout) -> bool:
    profiles = {profile.kind: profile for profile in gpu.profiles}
    used: list[int] = []
    for part in layout.parts:
        profile = profiles[part.kind]
        used += range(part.placement.start, part.placement.start + part.placement.size)
        if part.placement not in profile.placements:
            return False
        if sum(COMPUTE_SLICES[c.kind] for c in part.compute) > profile.slices:
            return False
    counts = Counter(part.kind for part in layout.parts)
    slices = sum(profiles[part.kind].slices for part in layout.parts)
    return (
        len(used) == len(set(used))
        and slices <= max(p.slices for p in gpu.profiles)
        and all(count <= profiles[kind].limit for kind, count in counts.items())
    )


def brute_force(gpu: MigGpu, wish: Counter[str]) -> bool:
    """Return whether whole GPU instances fit, by trying every choice of placements."""
    by_name = {profile.name: profile for profile in gpu.profiles}
    chosen = [by_name[name] for name in wish.elements()]
    if sum(profile.slices for profile in chosen) > max(p.slices for p in gpu.profiles):
        return False
    if any(count > by_name[name].limit for name, count in wish.items()):
        return False
    for places in product(*(profile.placements for profile in chosen)):
        used = [slot for place in places for slot in range(place.start, place.start + place.size)]
        if len(used) == len(set(used)):
            return True
    return False


@st.composite
def wishes(draw: st.DrawFn, gpu: MigGpu) -> Counter[str]:
    names = [profile.name for profile in gpu.profiles]
    return Counter(draw(st.lists(st.sampled_from(names), max_size=6)))


@pytest.mark.parametrize("gpu", [SEVEN, FOUR], ids=["seven", "four"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_layout_is_found_exactly_if_one_exists(gpu: MigGpu, data: st.DataObject) -> None:
    before, wish = data.draw(wishes(gpu)), data.draw(wishes(gpu))
    if brute_force(gpu, before):
        gpu = with_layout(gpu, layout_for(gpu, before))
    try:
        layout = layout_for(gpu, wish)
    except UsageError:
        assert not brute_force(gpu, wish)
        return
    assert brute_force(gpu, wish)
    assert is_valid(gpu, layout)
    assert devices(gpu, layout) == wish


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_layout_keeps_more_instances(data: st.DataObject) -> None:
    before, wish = data.draw(wishes(SEVEN)), data.draw(wishes(SEVEN))
    if not (brute_force(SEVEN, before) and brute_force(SEVEN, wish)):
        return
    gpu = with_layout(SEVEN, layout_for(SEVEN, before))
    layout = layout_for(gpu, wish)
    existing = {(gi.kind, gi.placement) for gi in gpu.instances}
    kept = len(existing & {(part.kind, part.placement) for part in layout.parts})

    by_name = {profile.name: profile for profile in gpu.profiles}
    chosen = [by_name[name] for name in wish.elements()]
    best = 0
    for places in product(*(profile.placements for profile in chosen)):
        used = [slot for place in places for slot in range(place.start, place.start + place.size)]
        pairs = {(p.kind, place) for p, place in zip(chosen, places, strict=True)}
        if len(used) == len(set(used)):
            best = max(best, len(existing & pairs))
    assert kept == best


def test_every_table_can_have_each_of_its_profiles_up_to_the_limit() -> None:
    for table in TABLES:
        gpu = tables.gpu_of(table)
        for profile in gpu.profiles:
            layout = layout_for(gpu, {profile.name: profile.limit})
            assert is_valid(gpu, layout)
            with pytest.raises(UsageError, match="has no room"):
                layout_for(gpu, {profile.name: profile.limit + 1})


def test_compute_instances_share_as_few_gpu_instances_as_possible() -> None:
    layout = layout_for(SEVEN, {"1c.3g.40gb": 2, "2c.3g.40gb": 1})

    assert [len(part.compute) for part in layout.parts] == [2, 1]
    assert devices(SEVEN, layout) == {"1c.3g.40gb": 2, "2c.3g.40gb": 1}


def test_a_compute_instance_is_added_to_a_gpu_instance_that_stays() -> None:
    gpu = with_layout(SEVEN, layout_for(SEVEN, {"2c.7g.80gb": 1}))
    layout = layout_for(gpu, {"2c.7g.80gb": 1, "4c.7g.80gb": 1})

    assert [c.id for c in layout.parts[0].compute] == [0, None]


def test_all_small_sets_of_compute_instances_in_one_instance_are_found() -> None:
    for count in range(1, 8):
        for sizes in combinations_with_replacement((1, 2, 3, 4), count):
            wish = Counter(f"{size}c.7g.80gb" for size in sizes)
            if sum(sizes) <= 7:
                assert devices(SEVEN, layout_for(SEVEN, wish)) == wish
            else:
                with pytest.raises(UsageError, match="has no room"):
                    layout_for(SEVEN, wish)


def test_an_unknown_profile_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"GPU 0 \(A30\) has no MIG profile 9g.99gb"):
        layout_for(FOUR, {"9g.99gb": 1})


@pytest.mark.parametrize("count", [8, 10**9, 10**30])
def test_more_devices_than_slices_are_refused_before_a_search(count: int) -> None:
    with pytest.raises(UsageError, match=f"has no room for {count} x 1c.7g.80gb"):
        layout_for(SEVEN, {"1c.7g.80gb": count})


def test_a_layout_for_the_same_wish_is_the_same() -> None:
    first = layout_for(SEVEN, {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1})
    again = layout_for(with_layout(SEVEN, first), {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2})

    assert is_same(first, again)
