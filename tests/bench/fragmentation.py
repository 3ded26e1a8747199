# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench fragmentation`: random days of claims for MIG devices of a node of 8 A100.

MIG devices that are made on demand are compared with layouts that somebody has chosen before. The
devices, their order and their counters are those that the driver offers; the first one that fits is
taken, as by Kubernetes' scheduler. Claims wait in the order of their arrival, and smaller ones may
overtake. Times are in minutes.
"""

import asyncio
import heapq
import itertools
import os
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from nvct.agent.dra import gather
from nvct.agent.dra.devices import Device, Offer
from nvct.agent.dra.mig_devices import offer
from nvct_sim import tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import discovery

GPUS = 8
SLICES = 7
"""Compute slices of an A100."""
DAY = 24 * 60.0
DAYS = int(os.environ.get("NVCT_BENCH_DAYS", "20"))
MIX = {"1g.10gb": 45, "2g.20gb": 25, "3g.40gb": 20, "7g.80gb": 10}
"""Of a hundred claims."""
MEDIAN = 30.0
SPREAD = 1.0
"""How long a claim lives: log-normal, with this median and sigma."""
LOAD = float(os.environ.get("NVCT_BENCH_LOAD", "0.75"))
"""What the claims of a day need, as a part of the node's compute slices."""
LAYOUTS = {
    "whole GPUs": ["7g.80gb"],
    "all 3g.40gb": ["3g.40gb"] * 2,
    "all 2g.20gb": ["2g.20gb"] * 3,
    "all 1g.10gb": ["1g.10gb"] * 7,
    "all-balanced": ["1g.10gb"] * 2 + ["2g.20gb"] + ["3g.40gb"],
}
"""MIG devices of each GPU; the last one is that of NVIDIA's mig-parted."""
HALF = {
    "half whole, half balanced": [["7g.80gb"]] * 4 + [LAYOUTS["all-balanced"]] * 4,
}


@dataclass(order=True)
class Claim:
    """A claim that arrives."""

    arrives: float
    profile: str = field(compare=False)
    lasts: float = field(compare=False)


@dataclass
class Result:
    """What a day was like.

    Attributes:
        waits: of the claims that got a device.
        never: claims for which the node has no device.
        used: slice-minutes that claims asked for and had.
        fragmented: minutes in which a claim waited though as many slices were free.
    """

    waits: list[float] = field(default_factory=list)
    never: int = 0
    used: float = 0.0
    fragmented: float = 0.0


class OnDemand:
    """The devices that GPUs could have, with the counters that they share."""

    def __init__(self, offered: Offer) -> None:
        (self._left_of_one,) = (dict(each) for each in offered.counters.values())
        self._devices = [d for d in offered.devices if d.counters]
        self._left = [dict(self._left_of_one) for _ in range(GPUS)]
        self.free = GPUS * SLICES

    def has(self, profile: str) -> bool:
        return any(device.attributes["profile"] == profile for device in self._devices)

    def take(self, profile: str) -> Callable[[], None] | None:
        """Take a device, and return what gives it back; None if none fits."""
        for left in self._left:
            for device in self._devices:
                if device.attributes["profile"] != profile:
                    continue
                if all(left[name] >= number for name, number in device.counters.items()):
                    return self._taken(left, device)
        return None

    def _taken(self, left: dict[str, int], device: Device) -> Callable[[], None]:
        size = slices_of(str(device.attributes["profile"]))
        for name, number in device.counters.items():
            left[name] -= number
        self.free -= size

        def give_back() -> None:
            for name, number in device.counters.items():
                left[name] += number
            self.free += size

        return give_back


class Static:
    """Devices that exist; a claim gets the smallest free one that is not smaller than it asks."""

    def __init__(self, layouts: Sequence[Sequence[str]]) -> None:
        self._devices = Counter(itertools.chain.from_iterable(layouts))
        self._left = Counter(self._devices)
        self.free = sum(slices_of(name) * n for name, n in self._devices.items())

    def has(self, profile: str) -> bool:
        return any(slices_of(name) >= slices_of(profile) for name in self._devices)

    def take(self, profile: str) -> Callable[[], None] | None:
        for name in sorted(self._left, key=slices_of):
            if slices_of(name) >= slices_of(profile) and self._left[name]:
                return self._taken(name)
        return None

    def _taken(self, name: str) -> Callable[[], None]:
        self._left[name] -= 1
        self.free -= slices_of(name)

        def give_back() -> None:
            self._left[name] += 1
            self.free += slices_of(name)

        return give_back


def slices_of(profile: str) -> int:
    """Return the compute slices of a profile."""
    return int(profile.partition("g.")[0])


def claims_of_a_day(seed: int) -> list[Claim]:
    """Return the claims of a random day in the order of their arrival."""
    dice = random.Random(seed)
    claims = []
    need = 0.0
    while need < LOAD * GPUS * SLICES * DAY:
        (profile,) = dice.choices(list(MIX), list(MIX.values()))
        lasts = min(MEDIAN * dice.lognormvariate(0, SPREAD), DAY / 4)
        claims.append(Claim(dice.uniform(0, DAY), profile, lasts))
        need += slices_of(profile) * lasts
    return sorted(claims)


def simulate(claims: Sequence[Claim], node: OnDemand | Static) -> Result:
    """Return what a day is like on a node."""
    result = Result()
    events: list[tuple[float, int, Claim | None, Callable[[], None] | None]] = []
    order = itertools.count()
    for claim in claims:
        if node.has(claim.profile):
            heapq.heappush(events, (claim.arrives, next(order), claim, None))
        else:
            result.never += 1
    waiting: list[Claim] = []
    before = 0.0
    while events:
        now, _, arrived, give_back = heapq.heappop(events)
        if any(slices_of(claim.profile) <= node.free for claim in waiting):
            result.fragmented += min(now, DAY) - min(before, DAY)
        before = now
        if arrived is not None:
            waiting.append(arrived)
        if give_back is not None:
            give_back()
        for claim in list(waiting):
            taken = node.take(claim.profile)
            if taken is not None:
                waiting.remove(claim)
                result.waits.append(now - claim.arrives)
                end = now + claim.lasts
                result.used += slices_of(claim.profile) * max(0.0, min(end, DAY) - min(now, DAY))
                heapq.heappush(events, (end, next(order), None, taken))
    return result


def measure(work: Path) -> int:
    """Simulate the days with each layout, and print a table; return the exit status."""
    offered = _offered(work)
    days = [claims_of_a_day(seed) for seed in range(DAYS)]
    title = (
        f"{DAYS} random days, {statistics.mean(map(len, days)):.0f} claims each, which need "
        f"{LOAD:.0%} of 8 A100"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for number, name in enumerate((
        "MIG devices", "in use", "wait, mean", "p95", "never fit", "fragmented",
    )):  # fmt: skip
        table.add_column(name, justify="right" if number else "left")
    for name, make in _nodes(offered):
        table.add_row(name, *_row([simulate(day, make()) for day in days], days))
    Console().print(table)
    return 0


def _nodes(offered: Offer) -> Iterator[tuple[str, Callable[[], OnDemand | Static]]]:
    yield "on demand", lambda: OnDemand(offered)
    layouts: Mapping[str, list[list[str]]] = {n: [e] * GPUS for n, e in LAYOUTS.items()} | HALF
    for name, each in layouts.items():
        yield name, lambda each=each: Static(each)  # type: ignore[misc]


def _row(results: Sequence[Result], days: Sequence[Sequence[Claim]]) -> tuple[str, ...]:
    waits = [wait for result in results for wait in result.waits]
    count = sum(map(len, days))
    return (
        f"{statistics.mean(r.used for r in results) / (GPUS * SLICES * DAY):.0%}",
        f"{statistics.mean(waits):.1f} min",
        f"{statistics.quantiles(waits, n=20)[18]:.0f} min",
        f"{sum(r.never for r in results) / count:.0%}",
        f"{statistics.mean(r.fragmented for r in results) / DAY:.0%}",
    )


def _offered(work: Path) -> Offer:
    """Return what the driver offers of an A100 in MIG mode without MIG devices."""
    node = tree.create("bench", "mixed", work / "dra", nodes="plain", native_cache=CACHE)
    try:
        with discovery(node) as machine:
            looked = asyncio.run(gather.machine(machine))
            (gpu,) = (g.uuid for g in looked.inventory.gpus if g.mig_enabled and not g.mig)
            return offer(looked, {}, on_demand=True).of_gpus({gpu})
    finally:
        tree.destroy(node)
