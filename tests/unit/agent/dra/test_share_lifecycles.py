# SPDX-License-Identifier: Apache-2.0
"""Claims with shares of a GPU live and die at random, at the same time, and nothing leaks.

A test's keeper has daemons that start and end slowly; all above it is real.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.dra import journal, mps_claims
from nvct.agent.dra.devices import MIB, Device
from nvct.agent.dra.mps_claims import ClaimDaemons
from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.mps.daemons import Daemon, of_shares
from nvct.agent.mps.keeper import ENDING, NOT_YET
from tests.unit.agent.dra.test_prepare import Node

STEPS = 100
GPUS = {f"gpu-{n}": f"GPU-00000000-1111-4222-8333-{n:012x}" for n in range(2)}
SIZES = (2000, 5000)
PAUSE = 20
"""The most turns of the event loop that something takes."""


class SlowKeeper:
    """Stands for the keeper of `nvct.agent.mps.keeper`, as the agent sees it by NVML's client."""

    def __init__(self, dice: random.Random) -> None:
        self.daemons: dict[str, Daemon] = {}
        self.starts: Counter[str] = Counter()
        self._dice = dice
        self._rests: dict[str, int] = {}
        self._ending: dict[str, int] = {}

    async def mps(
        self, wanted: Iterable[Daemon], *, starts: bool, owner: Literal["", "dra"] = ""
    ) -> dict[str, str]:
        assert starts
        assert owner == "dra"
        by_name = {daemon.resource: daemon for daemon in wanted}
        for name, daemon in [*self.daemons.items()]:
            if by_name.get(name) != daemon:
                del self.daemons[name]
                self._ending[name] = self._dice.randrange(3)
        for name, daemon in by_name.items():
            if name not in self.daemons:
                self.daemons[name] = daemon
                self.starts[name] += 1
                self._rests[name] = self._dice.randrange(3)
        state = {name: ENDING for name, rest in self._ending.items() if rest}
        for rests in (self._ending, self._rests):
            for name in rests:
                rests[name] = max(0, rests[name] - 1)
        for _ in range(self._dice.randrange(PAUSE)):
            await asyncio.sleep(0)
        return state | {
            name: NOT_YET if self._rests[name] or self._ending.get(name) else ""
            for name in self.daemons
        }


class Life:
    """A node whose agent can be killed; the keeper lives on, as it does with NVML's worker."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.dice = dice
        self.keeper = SlowKeeper(dice)
        self.node = Node(folder)
        self.live: dict[str, tuple[ClaimRef, str, int]] = {}
        self.restart()

    def restart(self) -> None:
        self.node.restart()
        self.node.preparer.devices = {
            name: Device(
                name=name, uuid=uuid, gpu=uuid, attributes={}, capacity={"memory": 15360 * MIB}
            )
            for name, uuid in GPUS.items()
        }  # fmt: skip
        self.node.know(
            {u: {"deviceNodes": [{"path": f"/dev/{name}"}]} for name, u in GPUS.items()}
        )
        self.node.preparer.mps = ClaimDaemons(cast("Any", self.keeper), Log(target=self.node.log))

    def allocate(self, name: str) -> None:
        gpu = self.dice.choice(sorted(GPUS))
        sizes = {size for _, held, size in self.live.values() if held == gpu}
        size = sizes.pop() if sizes else self.dice.choice(SIZES)
        ref = self.node.allocate(name, gpu, consumedCapacity={"memory": f"{size}Mi"})
        self.live[name] = ref, gpu, size

    async def pause(self) -> None:
        for _ in range(self.dice.randrange(PAUSE)):
            await asyncio.sleep(0)

    async def begin(self, ref: ClaimRef) -> None:
        await self.pause()
        await self.node.preparer.prepare(ref)

    async def end(self, ref: ClaimRef) -> None:
        await self.pause()
        await self.node.preparer.unprepare(ref)

    async def step(self, number: int) -> None:
        """Let claims begin and end at the same time; sometimes the agent is killed meanwhile."""
        lives_on = {*self.live}
        ending = self.dice.sample(sorted(self.live), min(len(self.live), self.dice.randrange(4)))
        lives_on -= {*ending}
        before = Counter(self.keeper.starts)
        # A new claim may come to a GPU whose last share ends: of another size it has to wait.
        ends = [self.live[name][0] for name in ending]
        for n in range(self.dice.randrange(4) if len(self.live) < 12 else 0):
            self.allocate(f"c{number}-{n}")
        for name in ending:
            del self.live[name]
        begins = [ref for ref, _, _ in self.live.values() if ref.name not in lives_on]
        tasks = [asyncio.ensure_future(self.begin(ref)) for ref in begins]
        tasks += [asyncio.ensure_future(self.end(ref)) for ref in ends]
        if self.dice.random() < 0.2:
            await self.pause()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.restart()
            await asyncio.gather(*map(self.end, ends), *map(self.begin, begins))
        else:
            await asyncio.gather(*tasks)
        for ref in ends:
            self.node.delete(ref)
        for name in lives_on:  # the daemons of claims that live were not started again
            resource = of_shares(GPUS[self.live[name][1]])
            assert self.keeper.starts[resource] == before[resource], name

    def check(self) -> None:
        known = self.node.journal.load()
        assert {claim.name for claim in known.values()} == {*self.live}
        wanted = {of_shares(GPUS[gpu]): {"0": size} for _, gpu, size in self.live.values()}
        assert {name: d.limits for name, d in self.keeper.daemons.items()} == wanted
        assert self.node.files() == sorted(ref.uid for ref, _, _ in self.live.values())


async def test_random_lifecycles_of_shares_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_claims, "POLL_S", 0)
    monkeypatch.setattr(journal, "POLL_S", 0)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    life = Life(tmp_path, random.Random(seed))
    for number in range(STEPS):
        await life.step(number)
        life.check()
    ends = [ref for ref, _, _ in life.live.values()]
    life.live.clear()
    await asyncio.gather(*map(life.end, ends))
    life.check()
    assert life.keeper.daemons == {}
