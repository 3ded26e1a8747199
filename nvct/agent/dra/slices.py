# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices of a node: its devices in the form of the API, in the slices of one pool.

Contract: pure functions, except `newest`. The pool is named after the node. All of its slices have
one generation, which increases when the pool gets other slices or a device moves to another one;
the scheduler then uses none of them until all are there. Changed attributes keep the generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from nvct.agent.dra.devices import CORES, DRIVER, MEMORY, MIB, Device, Offer, Value, Version
from nvct.agent.kubernetes.cluster import NOT_FOUND, ClusterError, Kind, Object
from nvct.agent.mps.daemons import CLIENTS
from nvct.host import faults

T = TypeVar("T")
GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta1")
"""Of the API, in the order of preference: in Kubernetes 1.34 and later; in 1.32 and 1.33."""
SLICE_DEVICES = 64
"""The most devices of a slice if one has a taint or shares counters."""
SLICE_SETS = 8
"""The most sets of counters of a slice, which then has no devices."""
SLICES = 100
"""More slices than a node can have; a slice with another ending is another program's."""
XID, LOST, UNHEALTHY = f"{DRIVER}/xid", f"{DRIVER}/gpu-lost", f"{DRIVER}/unhealthy"
"""Taints that keep new pods from a device; pods that have it keep it. The first two are NVIDIA's.
The taint of an XID that an application has caused has no effect."""
NO_EFFECT = "None"
NAME_LIMIT = 253
UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def kind(version: str) -> Kind:
    """Return the kind of slices in a version of the API."""
    return Kind(GROUP, version, "ResourceSlice", "resourceslices", is_namespaced=False)


async def newest(
    read: Callable[[str], Awaitable[T]], versions: Sequence[str] = VERSIONS
) -> tuple[str, T]:
    """Return the newest version of the API that the server has, and what `read` returns for it.

    ClusterError with the status NOT_FOUND if the server has none; or any other error of `read`.
    """
    version, *older = versions
    try:
        return version, await read(version)
    except ClusterError as error:
        if error.status != NOT_FOUND or not older:
            raise
    return await newest(read, older)


class Changes(NamedTuple):
    """The changes after which a node has the slices that it should have.

    Attributes:
        apply: objects to be written, in this order.
        delete: names of slices to be deleted afterwards.
    """

    apply: tuple[Object, ...] = ()
    delete: tuple[str, ...] = ()


def contents(offer: Offer, version: str) -> tuple[Object, ...]:
    """Return the part of each slice's spec that has its devices or counters."""
    sets = [{"name": n, "counters": _numbers(c)} for n, c in sorted(offer.counters.items())]
    whole = [_device(device, version) for device in offer.devices if not device.counters]
    sharing = [_device(device, version) for device in offer.devices if device.counters]
    return tuple(
        {key: part}
        for key, entries, size in (
            ("sharedCounters", sets, SLICE_SETS),
            ("devices", whole, SLICE_DEVICES),
            ("devices", sharing, SLICE_DEVICES),
        )
        for part in _parts(entries, size)
    )


def changes(found: Iterable[Object], contents: Sequence[Object], node: Object) -> Changes:
    """Return the changes that a node's slices need.

    Args:
        found: the driver's slices of the node, as the API server has them.
        contents: as `contents` returns it.
        node: the Node, which owns the slices.
    """
    metadata = node["metadata"]
    specs = {
        slice_name(metadata["name"], index): _spec(metadata["name"], content, len(contents))
        for index, content in enumerate(contents)
    }
    by_name = {one["metadata"]["name"]: one for one in found}
    newest = max((one["spec"]["pool"]["generation"] for one in by_name.values()), default=0)
    is_kept = bool(specs.keys() & by_name.keys()) and all(
        name in by_name and _placement(by_name[name]["spec"], newest) == _placement(spec, newest)
        for name, spec in specs.items()
    )
    generation = newest if is_kept else newest + 1
    wanted = []
    for name, spec in specs.items():
        spec["pool"]["generation"] = generation
        if name not in by_name or _without_times(by_name[name]["spec"]) != spec:
            wanted.append({"metadata": _metadata(name, metadata), "spec": spec})
    return Changes(tuple(wanted), tuple(sorted(by_name.keys() - specs.keys())))


def others(found: Iterable[Object], node: str) -> list[str]:
    """Return the names of slices that another program has written for this driver and node."""
    own = {slice_name(node, index) for index in range(SLICES)}
    return sorted(one["metadata"]["name"] for one in found if one["metadata"]["name"] not in own)


def slice_name(node: str, index: int) -> str:
    """Return the name of a slice; a hash replaces the end of a node name that is too long."""
    ending = f"-{DRIVER}-{index}"
    if len(node) + len(ending) > NAME_LIMIT:
        digest = hashlib.sha256(node.encode()).hexdigest()[:12]
        node = f"{node[: NAME_LIMIT - len(ending) - len(digest) - 1].rstrip('-.')}-{digest}"
    return f"{node}{ending}"


def quantity(number: int) -> str:
    """Return a number as the API server writes it: 85899345920 is 80Gi."""
    unit = 0
    while number and number % 1024 == 0 and unit < len(UNITS) - 1:
        number, unit = number // 1024, unit + 1
    return f"{number}{UNITS[unit]}"


def _placement(spec: Mapping[str, Any], generation: int) -> tuple[object, ...]:
    """Return the part of a slice's spec that changes only with the pool's generation."""
    pool = spec["pool"]
    entries = [*spec.get("devices", ()), *spec.get("sharedCounters", ())]
    names = [(entry["name"], sorted(entry.get("counters", ()))) for entry in entries]
    return pool.get("generation") or generation, pool["resourceSliceCount"], names


def _spec(node: str, content: Object, count: int) -> Object:
    pool = {"name": node, "generation": 0, "resourceSliceCount": count}
    return {"driver": DRIVER, "nodeName": node, "pool": pool, **content}


def _metadata(name: str, node: Mapping[str, Any]) -> Object:
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["name"], "uid": node["uid"]}
    return {"name": name, "ownerReferences": [{**owner, "controller": True}]}


def _without_times(spec: Object) -> Object:
    """Return a slice's spec without `timeAdded` of taints, which the API server adds."""
    if not any("taints" in device for device in spec.get("devices", ())):
        return spec
    devices = []
    for device in spec["devices"]:
        taints = [
            {key: value for key, value in taint.items() if key != "timeAdded"}
            for taint in device.get("taints", ())
        ]
        devices.append({**device, "taints": taints} if taints else device)
    return {**spec, "devices": devices}


def _parts(entries: list[Object], size: int) -> Iterator[list[Object]]:
    return (entries[start : start + size] for start in range(0, len(entries), size))


def _numbers(numbers: Mapping[str, int]) -> Object:
    return {name: {"value": quantity(number)} for name, number in numbers.items()}


def _device(device: Device, version: str) -> Object:
    body: Object = {
        "attributes": {name: attribute(value) for name, value in device.attributes.items()},
        "capacity": _numbers(device.capacity),
    }
    if device.share_mib is not None:
        body["allowMultipleAllocations"] = True
        body["capacity"].update(_shares(device.capacity[MEMORY], device.share_mib))
    if device.counters:
        taken = {"counterSet": device.counter_set, "counters": _numbers(device.counters)}
        body["consumesCounters"] = [taken]
    if version != "v1beta1":
        body["taints"] = _taints(device)
    body = {key: value for key, value in body.items() if value}
    return {"name": device.name, **({"basic": body} if version == "v1beta1" else body)}


def _taints(device: Device) -> list[Object]:
    if not device.unhealthy:
        xid = {"key": XID, "value": str(device.xid), "effect": NO_EFFECT}
        return [xid] if device.xid else []
    if xid_number := faults.xid_of(device.unhealthy):
        return [{"key": XID, "value": str(xid_number), "effect": "NoSchedule"}]
    is_lost = device.unhealthy.startswith(faults.LOST)
    return [{"key": LOST if is_lost else UNHEALTHY, "effect": "NoSchedule"}]


def _shares(memory: int, share_mib: int) -> Object:
    """Return the capacities that claims can share.

    A claim that asks for no memory gets all of it, so no claim has a whole GPU beside shares of
    it. The smallest share is so large that there are no more shares than MPS can have clients.
    """
    policy: Object = {"default": quantity(memory)}
    if share_mib:
        policy["validValues"] = [quantity(share_mib * MIB), quantity(memory)]
    else:
        least = -(-memory // (CLIENTS * MIB)) * MIB
        policy["validRange"] = {"min": quantity(least), "step": "1Mi"}
    percent = {"default": "0", "validRange": {"min": "0", "step": "1"}}
    return {
        MEMORY: {"value": quantity(memory), "requestPolicy": policy},
        CORES: {"value": "100", "requestPolicy": percent},
    }


def attribute(value: Value) -> Object:
    """Return the value of an attribute as the API has it."""
    if isinstance(value, Version):
        return {"version": value.text}
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}
