# SPDX-License-Identifier: Apache-2.0
"""The counters of MIG devices on demand: few, and they refuse what cannot exist together."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from nvct.agent.dra import mig_devices, settings
from nvct.agent.dra.devices import Device, Machine, Place
from nvct.agent.machine.inventory import Inventory
from nvct.errors import DocumentError
from nvct.host.nvml.mig_model import GpuInstance, MigGpu, MigProfile, Placement
from nvct.mig import tables
from nvct_sim import profile
from tests.unit.agent.dra.test_devices import gpu

Counters = Mapping[str, int]
SIMULATED = ("h100-mig", "h200", "a100-80", "mixed")
RTX = "RTX PRO 6000 Blackwell"


def _simulated() -> dict[str, MigGpu]:
    """Return a GPU of each simulated model, with the engines that NVML reported of a real one."""
    models = {each.model["name"]: each.model for n in SIMULATED for each in profile.load(n).gpus}
    return {
        name: replace(_EMPTY, name=name, profiles=tuple(map(_profile, model["mig"])))
        for name, model in models.items()
        if model["mig"]
    }


_EMPTY = MigGpu(index=0, uuid="GPU-0", name="", bus_id="", minor=0, device=0, subsystem=0)


def _profile(row: Mapping[str, Any]) -> MigProfile:
    pairs = (place.partition(":") for place in row["placements"].split(","))
    return MigProfile(
        kind=row["kind"], id=row["id"], name=row["name"], slices=row["slices"], limit=row["max"],
        placements=tuple(Placement(int(start), int(size)) for start, _, size in pairs),
        memory_mib=row["memory"], multiprocessors=row["sm"], copy=row["ce"], decoder=row["dec"],
        jpeg=row["jpeg"], ofa=row["ofa"],
    )  # fmt: skip


def _with_media() -> MigGpu:
    """Return a GPU on which one instance can have all media engines, and others have none."""
    known = tables.gpu_of(tables.of_name(RTX))
    engines = {"+me.all": 4, "-me": 0}
    return replace(known, profiles=tuple(
        replace(p, decoder=next((n for end, n in engines.items() if end in p.name), p.slices))
        for p in known.profiles
    ))  # fmt: skip


GPUS = {**_simulated(), RTX: _with_media()}
TAKEN = {"none": None, "1g at 0": (0, 0), "1g at 5": (0, 5), "1g+me at 2": (1, 2)}
"""Instances of somebody else: the number of the profile, and of its placement."""


def _offered(
    state: MigGpu, foreign: Sequence[GpuInstance] = ()
) -> tuple[tuple[Device, ...], Counters]:
    machine = Machine(inventory=Inventory(gpus=(gpu(0),)))
    return mig_devices.possible(gpu(0), state, machine, foreign)


def _all_counters(
    state: MigGpu, foreign: Sequence[GpuInstance]
) -> tuple[list[Counters], Counters]:
    """Return what each device takes of everything that NVML counts, and what there is of that."""
    by_kind = {p.kind: p for p in state.profiles}
    there = [_everything(by_kind[each.kind], each.placement) for each in foreign]
    every = {
        (p.id, place): _everything(p, place) for p in state.profiles for place in p.placements
    }
    names = set(chain.from_iterable(every.values()))
    left = {
        name: max(each.get(name, 0) for each in every.values())
        - sum(each.get(name, 0) for each in there)
        for name in names
    }
    return list(every.values()), left


def _everything(p: MigProfile, place: Placement) -> Counters:
    return {
        "sm": p.multiprocessors, "ce": p.copy, "dec": p.decoder, "jpeg": p.jpeg, "ofa": p.ofa,
        "memory": p.memory_mib,
        **{str(n): 1 for n in range(place.start, place.start + place.size)},
    }  # fmt: skip


def _fits(takes: Counters, left: Counters) -> bool:
    return all(left.get(name, 0) >= number for name, number in takes.items() if number)


def _without(left: Counters, takes: Counters) -> Counters:
    return {name: number - takes.get(name, 0) for name, number in left.items()}


def _differences(
    pairs: Sequence[tuple[Counters, Counters]], few: Counters, all_: Counters, first: int = 0
) -> Iterator[list[int]]:
    """Yield each set of devices which the counters admit, and all together do not, or reversed.

    A set of claims does not depend on the order in which they came and went.
    """
    for number in range(first, len(pairs)):
        by_few, by_all = pairs[number]
        fits = _fits(by_few, few)
        if fits != _fits(by_all, all_):
            yield [number]
        elif fits:
            rest = _without(few, by_few), _without(all_, by_all)
            yield from ([number, *more] for more in _differences(pairs, *rest, number + 1))


@pytest.mark.parametrize("taken", TAKEN)
@pytest.mark.parametrize("name", GPUS)
def test_the_counters_admit_what_all_that_nvml_counts_admits(name: str, taken: str) -> None:
    state, place = GPUS[name], TAKEN[taken]
    foreign = []
    if place is not None:
        number, start = place
        one = state.profiles[number]
        placement = one.placements[min(start, len(one.placements) - 1)]
        foreign = [GpuInstance(id=1, kind=one.kind, placement=placement)]
    devices, few = _offered(state, foreign)
    everything, left = _all_counters(state, foreign)
    names = [
        f"gpu-0-mig-{p.name.replace('.', '').replace('+', '-').lower()}-{p.id}-{place.start}"
        for p in state.profiles
        for place in p.placements
    ]
    taken_by = dict(zip(names, everything, strict=True))
    pairs = [(device.counters, taken_by[device.name]) for device in devices]

    assert next(_differences(pairs, few, left), None) is None
    offered = {device.name for device in devices}
    assert not [n for n in names if n not in offered and _fits(taken_by[n], left)]


def test_chosen_profiles_are_offered_and_what_claims_have() -> None:
    state = GPUS["NVIDIA H100 80GB HBM3"]
    machine = Machine(inventory=Inventory(gpus=(replace(gpu(0), mig_enabled=True),)))
    machine = replace(machine, mig={machine.inventory.gpus[0].uuid: state})
    claimed = {machine.inventory.gpus[0].uuid: [Place(9, 4, 2, 0)]}  # of 1g.20gb

    chosen = ("1g.10gb", "3g.40gb", "1g.12gb")
    found = mig_devices.offer(machine, claimed, on_demand=True, profiles=chosen)

    names = Counter(str(device.attributes["profile"]) for device in found.devices)
    assert names == {"1g.10gb": 7, "3g.40gb": 2, "1g.20gb": 1}
    (few,) = found.counters.values()
    (kept,) = (device for device in found.devices if "1g20gb" in device.name)
    rest = _without(few, kept.counters)
    free = {device.name for device in found.devices if _fits(device.counters, rest)}
    assert not {name for name in free if name.endswith(("-4", "-5")) and "1g10gb" in name}
    assert "gpu-0-mig-3g40gb-9-0" in free
    assert "gpu-0-mig-3g40gb-9-4" not in free


def test_a_profile_that_is_none_is_refused() -> None:
    with pytest.raises(DocumentError, match=r"cannot parse fields of '1gb'"):
        settings.resolve(["--mig-profiles=1g.10gb,1gb"], {})
    assert settings.resolve([], {"MIG_PROFILES": "1g.10gb"})[0].mig_profiles == ("1g.10gb",)


def test_a_gpu_has_few_counters() -> None:
    """The scheduler looks at each counter of each device for each claim."""
    devices, few = _offered(GPUS["NVIDIA H100 80GB HBM3"])

    assert set(few) == {"ofa-engines", *(f"memory-slice-{n}" for n in range(7))}
    numbers = Counter({str(d.attributes["profile"]): len(d.counters) for d in devices})
    assert numbers["1g.10gb"] == 1
    assert sum(len(device.counters) for device in devices) <= 55
    assert all(device.counters for device in devices)
