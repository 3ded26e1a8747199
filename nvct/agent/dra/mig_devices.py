# SPDX-License-Identifier: Apache-2.0
"""MIG devices for DRA: those that exist, or could, and the counters of a GPU that they share.

A GPU could have each of its profiles at each of their placements. These devices share counters of
their GPU, so that the scheduler takes no two that overlap, and are made when a claim is prepared.
Contract: pure functions. Names and capacities are those of NVIDIA's driver.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nvct.agent.dra.devices import MIB, Device, Machine, Offer, Place, common, counter_set, devices
from nvct.host.model import Gpu
from nvct.host.nvml.mig_model import GpuInstance, MigGpu, MigProfile, Placement
from nvct.mig.layout import COMPUTE_KINDS

CAPITAL = re.compile(r"(?<=[a-z0-9])[A-Z]")


def existing(
    gpu: Gpu, instances: Iterable[GpuInstance], state: MigGpu, machine: Machine
) -> Iterator[Device]:
    """Yield the MIG devices of these GPU instances that have exactly one compute instance."""
    for instance in instances:
        found = [mig for mig in gpu.mig if mig.gi == instance.id]
        profile = _profile(state, instance.kind)
        if len(found) == len(instance.compute) == 1 and profile is not None:
            device = _device(gpu, machine, profile, instance.placement)
            slices = {f"memorySlice{n}": 1 for n in _slices(instance.placement)}
            yield replace(
                device, uuid=found[0].uuid, instance=(found[0].gi, found[0].ci),
                attributes={**device.attributes, "uuid": found[0].uuid},
                capacity={**device.capacity, **slices},
            )  # fmt: skip


def possible(
    gpu: Gpu,
    state: MigGpu,
    machine: Machine,
    foreign: Sequence[GpuInstance],
    *,
    profiles: Collection[str] = (),
    made: Collection[tuple[int, int, int]] = (),
) -> tuple[tuple[Device, ...], Mapping[str, int]]:
    """Return the MIG devices that a GPU could have, and the counters that they share.

    Args:
        foreign: its GPU instances that no claim has; MIG devices that overlap them are left out.
        profiles: those to offer; () is all.
        made: profile, first memory slice and number of slices of claims' MIG devices, which are
            offered whatever their profile is.
    """
    devices = []
    total: dict[str, int] = {}
    for profile in state.profiles:
        for placement in profile.placements:
            device = _device(gpu, machine, profile, placement)
            counters = {
                **{_counter(name): n for name, n in device.capacity.items() if n},
                **{f"memory-slice-{n}": 1 for n in _slices(placement)},
            }
            for name, number in counters.items():
                total[name] = max(total.get(name, 0), number)
            kind = COMPUTE_KINDS.get(profile.slices)
            is_free = not any(_overlap(placement, one.placement) for one in foreign)
            is_offered = not profiles or profile.name in profiles
            is_claimed = (profile.kind, *placement) in made
            if kind is None or not (is_free and (is_offered or is_claimed)):
                continue
            place = Place(profile.kind, placement.start, placement.size, kind)
            devices.append(replace(device, place=place, counters=counters))
    taken = {f"memory-slice-{n}" for one in foreign for n in _slices(one.placement)}
    left = {name: number for name, number in total.items() if name not in taken}
    for one in foreign:
        profile_of = _profile(state, one.kind)
        capacity = _capacity(profile_of) if profile_of else {}
        for name, number in capacity.items():
            left[_counter(name)] = max(left.get(_counter(name), 0) - number, 0)
    kept = _needed(devices, left)
    return tuple(
        replace(device, counters={n: device.counters[n] for n in device.counters if n in kept})
        for device in devices
    ), {name: left[name] for name in left if name in kept}


def _needed(devices: Sequence[Device], left: Mapping[str, int]) -> set[str]:
    """Return the counters that can refuse a device; the others only cost the scheduler time.

    A memory slice is not needed if all of its devices also use another one. Any other counter is
    not needed if devices that fit beside each other never take more of it than there is.
    """
    users = {
        name: {device.name for device in devices if name in device.counters}
        for name in left
        if name.startswith("memory-slice-")
    }
    needed = {
        name
        for name, own in users.items()
        if own and not any(own < more or (own == more and n < name) for n, more in users.items())
    }
    return needed | {n for n in left.keys() - users.keys() if _most(devices, n) > left[n]}


def _most(devices: Iterable[Device], name: str) -> int:
    """Return the most of a counter that devices in different memory slices take together."""
    places = [(device.place, device.counters.get(name, 0)) for device in devices if device.place]
    most = [0]  # of devices that end at or before a memory slice
    for end in range(1, max((place.start + place.size for place, _ in places), default=0) + 1):
        ending = (most[p.start] + number for p, number in places if p.start + p.size == end)
        most.append(max([most[-1], *ending]))
    return most[-1]


def instance_at(state: MigGpu, place: Place) -> GpuInstance | None:
    """Return the GPU instance at a place, None if there is none."""
    for instance in state.instances:
        if (instance.kind, *instance.placement) == (place.kind, place.start, place.size):
            return instance
    return None


def _device(gpu: Gpu, machine: Machine, profile: MigProfile, placement: Placement) -> Device:
    dashed = re.sub("[^a-z0-9]", "-", profile.name.lower().replace(".", ""))
    return Device(
        name=f"gpu-{gpu.minor}-mig-{dashed}-{profile.id}-{placement.start}",
        uuid="",
        gpu=gpu.uuid,
        attributes={
            "type": "mig",
            "parentUUID": gpu.uuid,
            "profile": profile.name,
            **common(gpu, machine, ""),  # a GPU in MIG mode has no NVLink
        },
        capacity=_capacity(profile),
        compute=machine.compute(gpu),
        counter_set=counter_set(gpu),
    )


def _capacity(profile: MigProfile) -> dict[str, int]:
    return {
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy,
        "decoders": profile.decoder,
        "encoders": profile.encoder,
        "jpegEngines": profile.jpeg,
        "ofaEngines": profile.ofa,
        "memory": profile.memory_mib * MIB,
    }


def _slices(placement: Placement) -> range:
    return range(placement.start, placement.start + placement.size)


def _overlap(first: Placement, second: Placement) -> bool:
    return first.start < second.start + second.size and second.start < first.start + first.size


def _profile(state: MigGpu, kind: int) -> MigProfile | None:
    return next((profile for profile in state.profiles if profile.kind == kind), None)


def _counter(capacity: str) -> str:
    """Return the name of a counter: copyEngines is copy-engines."""
    return CAPITAL.sub(lambda match: f"-{match[0].lower()}", capacity)


def offer(
    machine: Machine,
    claimed: Mapping[str, Collection[Place]],
    *,
    on_demand: bool,
    profiles: Collection[str] = (),
) -> Offer:
    """Return the devices of a node, and the counters that they share.

    Args:
        claimed: the places of MIG devices that were made for claims, by the UUID of the GPU.
        on_demand: whether MIG devices are made when a claim is prepared.
        profiles: those to make; () is all. MIG devices of claims are offered whatever their
            profile is, or the scheduler would not know that their place is taken.
    """
    found: list[Device] = list(devices(machine))
    counters: dict[str, Mapping[str, int]] = {}
    for gpu in machine.inventory.gpus:
        state = machine.mig.get(gpu.uuid)
        if not gpu.mig_enabled or state is None:
            continue
        made = {(place.kind, place.start, place.size) for place in claimed.get(gpu.uuid, ())}
        foreign = [one for one in state.instances if (one.kind, *one.placement) not in made]
        found += existing(gpu, foreign, state, machine)
        if on_demand:
            could_be, shared = possible(gpu, state, machine, foreign, profiles=profiles, made=made)
            found += sorted(could_be, key=lambda device: device.capacity["memory"])
            if shared:
                counters[counter_set(gpu)] = shared
    return Offer(devices=tuple(found), counters=counters)
