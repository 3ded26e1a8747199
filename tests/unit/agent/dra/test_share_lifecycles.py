# SPDX-License-Identifier: Apache-2.0
"""Claims with shares of a GPU live and die at random, at the same time, and nothing leaks.

In the first test a keeper has daemons that start and end slowly; all above it is real.
"""

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.dra import journal, mps_claims
from nvct.agent.dra.devices import DRIVER
from nvct.agent.dra.journal import Journal, gpus_of
from nvct.agent.dra.mps_claims import ClaimDaemons
from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.mps.daemons import Daemon, of_shares
from nvct.agent.mps.keeper import ENDING, NOT_YET
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_kubelet import RefusedError
from tests.unit.agent.dra.test_mps import Lab, lab, node
from tests.unit.agent.dra.test_mps_waits import with_mps
from tests.unit.agent.dra.test_prepare import CLAIM, Node

__all__ = ["lab", "node"]
STEPS = 100
LIVES = 500 if os.environ.get("NVCT_TESTS_PROFILE") == "full" else 30
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
        with_mps(self.node, 81559)
        devices = self.node.preparer.devices.items()
        self.gpus = {name: device.uuid for name, device in sorted(devices)[:2]}
        self.node.preparer.mps = ClaimDaemons(cast("Any", self.keeper), Log(target=self.node.log))

    def allocate(self, name: str) -> None:
        gpu = self.dice.choice([*self.gpus])
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
            resource = of_shares(self.gpus[self.live[name][1]])
            assert self.keeper.starts[resource] == before[resource], name

    def check(self) -> None:
        known = self.node.journal.load()
        assert {claim.name for claim in known.values()} == {*self.live}
        wanted = {of_shares(self.gpus[gpu]): {"0": size} for _, gpu, size in self.live.values()}
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


async def test_random_lifecycles_with_real_daemons_leave_nothing_behind(lab: Lab) -> None:
    """By the kubelet's calls, with MPS's stand-in: the agent, its worker and daemons are killed.

    `lab` finds daemons, folders and compute modes that are left.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    lab.shares = "uniform"
    left = [f"life-{n}" for n in range(LIVES)]
    live: dict[str, ClaimRef] = {}

    async def begin() -> None:
        name, gpu = left.pop(), f"gpu-{dice.randrange(4)}"
        # Of two sizes, and more in sum than a GPU has: some have to wait.
        claim = lab.share(name, gpu, dice.choice(("5000Mi", "6000Mi", "15Gi")))
        live[name] = claim
        with contextlib.suppress(RefusedError):
            await lab.kubelet.prepare(claim)

    async def end(name: str) -> None:
        if dice.random() < 0.8:  # else it is deleted by force, and nobody unprepares it
            await lab.kubelet.unprepare(live[name])
        lab.api.remove(CLAIM, name, "ns")
        del live[name]

    while left or live:
        async with lab.agent():
            for _ in range(dice.randrange(1, 12)):
                works = [begin() for _ in range(min(len(left), dice.randrange(5)))]
                most = len(live) if not left else dice.randrange(min(len(live), 5) + 1)
                works += [end(name) for name in dice.sample(sorted(live), most)]
                if dice.random() < 0.2:  # a client ends the daemon of others
                    for path in lab.mps.glob("gpu.nvidia.com/*"):
                        lab.say(f"gpu.nvidia.com/{path.name}", "quit")
                running = asyncio.gather(*works)
                if dice.random() < 0.1:
                    await asyncio.sleep(dice.random() / 4)
                    running.cancel()  # the kubelet ends: it asks again
                with contextlib.suppress(asyncio.CancelledError):
                    await running
            check(lab)
    async with lab.agent():
        await until(lambda: lab.journal() == [], 30)
        await until(lambda: [*lab.folder.glob("cdi/*claim_*")] == [], 30)


def check(lab: Lab) -> None:
    """Compare the claims of the journal with what GPUs have."""
    known = Journal(f"{lab.folder}/plugins/{DRIVER}").load().values()
    for gpu in {entry.gpu for claim in known for entry in claim.entries}:
        shares = [
            claim.share.share_mib for claim in known if claim.share and claim.share.gpu == gpu
        ]
        wholes = [claim for claim in known if not claim.share and gpu in gpus_of(claim)]
        assert len(set(shares)) <= 1
        assert sum(shares) <= 15360
        assert len(wholes) + bool(shares) <= 1
