# SPDX-License-Identifier: Apache-2.0
"""What a node offers: whole GPUs, and of each GPU in MIG mode its devices or those it could have.

Contract: pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nvct.agent.dra import mig_devices
from nvct.agent.dra.devices import Device, Machine, Offer, Place, counter_set, devices


def offer(machine: Machine, claimed: Mapping[str, Collection[Place]], *, on_demand: bool) -> Offer:
    """Return the devices of a node, and the counters that they share.

    Args:
        claimed: the places of MIG devices that were made for claims, by the UUID of the GPU.
        on_demand: whether MIG devices are made when a claim is prepared.
    """
    found: list[Device] = list(devices(machine))
    counters: dict[str, Mapping[str, int]] = {}
    for gpu in machine.inventory.gpus:
        state = machine.mig.get(gpu.uuid)
        if not gpu.mig_enabled or state is None:
            continue
        made = {(place.kind, place.start, place.size) for place in claimed.get(gpu.uuid, ())}
        foreign = [one for one in state.instances if (one.kind, *one.placement) not in made]
        found += mig_devices.existing(gpu, foreign, state, machine)
        if on_demand:
            possible, shared = mig_devices.possible(gpu, state, machine, foreign)
            found += sorted(possible, key=lambda device: device.capacity["memory"])
            if shared:
                counters[counter_set(gpu)] = shared
    return Offer(devices=tuple(found), counters=counters)
