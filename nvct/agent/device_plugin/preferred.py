# SPDX-License-Identifier: Apache-2.0
"""Chooses the free devices that a container should get: pure functions that cannot fail.

Whole GPUs are chosen by their links. If at most EXACT are free, the choice is that of NVIDIA's
go-gpuallocator: of all ways to divide the free GPUs into sets of the wanted size, it takes the one
with the highest sum of scores, and the best set of that. The search grows exponentially, so with
more GPUs a set is grown from each start and then improved by swaps.

Replicas and MIG devices are spread over the GPUs, or packed. Policy distinct avoids two replicas
of one device. Ties are broken by the order of the machine; the incumbent leaves them to chance.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

from nvct.agent.device_plugin.resources import Device, Resource
from nvct.host.nvml.model import GpuLink

Scores: TypeAlias = Mapping[tuple[str, str], int]
Set: TypeAlias = tuple[str, ...]

EXACT = 8
ANCESTORS = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
"""The score of two GPUs by their common ancestor (nvml.h, nvmlGpuTopologyLevel_t), from the same
board to different CPUs."""
NVLINK = 100
PADDING = ""
SWAPS = 200


def scores(links: Iterable[GpuLink]) -> dict[tuple[str, str], int]:
    """Return the score of each pair of GPUs, by their UUIDs in both orders."""
    table = {}
    for link in links:
        first, second = link.gpus
        score = ANCESTORS.get(link.ancestor, 0) + NVLINK * link.nvlinks
        table[first, second] = table[second, first] = score
    return table


def preferred(
    resource: Resource,
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    table: Scores,
    *,
    policy: str = "distributed",
) -> list[str]:
    """Return ids of `size` devices, the required ones among them; none if there are not enough.

    The policy (distributed, packed or distinct) is for replicas and MIG devices.
    """
    known = resource.devices
    must = [id_ for id_ in dict.fromkeys(required) if id_ in known][: max(size, 0)]
    taken = set(must)
    free = [id_ for id_ in dict.fromkeys(available) if id_ in known and id_ not in taken]
    if size <= 0 or len(must) + len(free) < size:
        return []
    if all(device.instance is None and not device.is_replica for device in known.values()):
        return _aligned(known, [*must, *free], must, size, table)
    return must + _spread(known, free, must, size - len(must), policy)


def _aligned(
    known: Mapping[str, Device], ids: Sequence[str], must: Sequence[str], size: int, table: Scores
) -> list[str]:
    gpus = sorted(ids, key=lambda id_: known[id_].order)
    if len(gpus) <= EXACT:
        chosen = _best_of_partitions(gpus, must, size, table)
    else:
        chosen = _grown(gpus, must, size, table)
    return sorted(chosen, key=lambda id_: known[id_].order)


def _best_of_partitions(gpus: Sequence[str], must: Iterable[str], size: int, table: Scores) -> Set:
    wanted = set(must)
    best: list[Set] = []
    best_score = -1
    for partition in _partitions(gpus, size):
        if not any(wanted <= set(part) and PADDING not in part for part in partition):
            continue
        score = sum(_score(part, table) for part in partition)
        if score > best_score:
            best, best_score = partition, score
    parts = [part for part in best if wanted <= set(part) and PADDING not in part]
    return max(parts, key=lambda part: _score(part, table))


def _partitions(gpus: Sequence[str], size: int) -> Iterator[list[Set]]:
    """Yield each division of GPUs into sets of one size; one set can have all of the padding."""
    if size == 1:
        for gpu in gpus:
            yield [(gpu,)]
        return
    padding = -len(gpus) % size

    def divide(rest: Sequence[str]) -> Iterator[list[Set]]:
        if len(rest) == size:
            yield [tuple(rest)]
            return
        for others in combinations(range(1, len(rest)), size - 1):
            part = (rest[0], *(rest[i] for i in others))
            if part.count(PADDING) in (0, padding):
                remaining = [gpu for i, gpu in enumerate(rest) if i and i not in others]
                yield from ([part, *more] for more in divide(remaining))

    yield from divide([*gpus, *[PADDING] * padding])


def _score(gpus: Sequence[str], table: Scores) -> int:
    return sum(table.get(pair, 0) for pair in combinations(gpus, 2))


def _grown(gpus: Sequence[str], must: Sequence[str], size: int, table: Scores) -> Set:
    """Return the best of the sets that grow from each start, each improved by swaps."""
    sets = []
    for start in [()] if must else [(gpu,) for gpu in gpus]:
        chosen = [*must, *start]
        while len(chosen) < size:
            rest = [gpu for gpu in gpus if gpu not in chosen]
            chosen.append(max(rest, key=lambda gpu: _gain(gpu, chosen, table)))
        sets.append(_swapped(chosen, gpus, must, table))
    return max(sets, key=lambda part: _score(part, table))


def _swapped(chosen: list[str], gpus: Sequence[str], must: Sequence[str], table: Scores) -> Set:
    for _ in range(SWAPS):
        best = (0, "", "")
        for old in (gpu for gpu in chosen if gpu not in must):
            others = [gpu for gpu in chosen if gpu != old]
            loss = _gain(old, others, table)
            for new in (gpu for gpu in gpus if gpu not in chosen):
                best = max(best, (_gain(new, others, table) - loss, old, new), key=lambda s: s[0])
        if not best[0]:
            break
        chosen = [gpu for gpu in chosen if gpu != best[1]] + [best[2]]
    return tuple(chosen)


def _gain(gpu: str, chosen: Iterable[str], table: Scores) -> int:
    return sum(table.get((gpu, other), 0) for other in chosen)


def _spread(
    known: Mapping[str, Device], free: Sequence[str], must: Sequence[str], size: int, policy: str
) -> list[str]:
    """Choose ids one by one: from the GPU with the fewest used devices; if packed, with the most.

    By policy distinct, hardware that the container has already comes last. All replicas of a
    device have the same rank, so only the first of each is compared: there can be thousands.
    """
    ordered = sorted(free, key=lambda id_: known[id_].order)
    place = {id_: number for number, id_ in enumerate(ordered)}
    left: dict[str, deque[str]] = {}
    for id_ in ordered:
        left.setdefault(known[id_].uuid, deque()).append(id_)
    sign = -1 if policy == "packed" else 1
    used = Counter(uuid for id_ in known.keys() - place.keys() for uuid in _parts(known[id_]))
    picked: Counter[str] = Counter()
    uuids = {known[id_].uuid for id_ in must}

    def rank(id_: str) -> tuple[int, ...]:
        parts = _parts(known[id_])
        had = (known[id_].uuid in uuids,) if policy == "distinct" else ()
        counts = *(sign * used[uuid] for uuid in parts), *(picked[uuid] for uuid in parts)
        return *had, *counts, place[id_]

    chosen: list[str] = []
    for _ in range(size):
        best = min((ids[0] for ids in left.values()), key=rank)
        of_device = left[known[best].uuid]
        of_device.popleft()
        if not of_device:
            del left[known[best].uuid]
        chosen.append(best)
        uuids.add(known[best].uuid)
        used.update(_parts(known[best]))
        picked.update(_parts(known[best]))
    return chosen


def _parts(device: Device) -> tuple[str, ...]:
    """Return the UUIDs of the hardware that a device uses: its GPU, and its MIG device."""
    return (device.gpu,) if device.instance is None else (device.gpu, device.uuid)
