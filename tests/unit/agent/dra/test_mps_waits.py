# SPDX-License-Identifier: Apache-2.0
"""What waits for the MPS control daemon of a claim, and what does not: with daemons that hang."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from nvct.agent.dra.devices import MIB
from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.mps.daemons import Daemon
from nvct.errors import HostError
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.test_prepare import CLAIM, Node, node
from tests.unit.agent.dra.test_sharing import by_mps

__all__ = ["node"]


class StuckDaemons:
    """Daemons that neither start nor end until they may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked: list[str] = []
        self.wanted: set[str] = set()

    def want(self, daemons: Iterable[Daemon]) -> None:
        self.wanted = {daemon.resource for daemon in daemons}

    async def ensure(self, daemon: Daemon) -> None:
        self.asked.append(f"start {daemon.resource}")
        await self.may.wait()

    async def release(self, daemon: Daemon) -> None:
        self.asked.append(f"end {daemon.resource}")
        await self.may.wait()


def with_mps(node: Node, mib: int = 15360) -> StuckDaemons:
    """Give a node MPS, and GPUs with so much memory and the UUIDs that MPS takes."""
    uuids = {
        name: f"GPU-{name[-1] * 8}-0000-4000-8000-{'0' * 12}" for name in node.preparer.devices
    }
    node.know({uuid: {"env": [f"A={name}"]} for name, uuid in uuids.items()})
    node.preparer.devices = {
        name: replace(each, uuid=uuids[name], gpu=uuids[name], capacity={"memory": mib * MIB})
        for name, each in node.preparer.devices.items()
    }
    node.preparer.mps = daemons = StuckDaemons()  # type: ignore[assignment]
    return daemons


def shared_by_mps(node: Node, name: str, device: str) -> tuple[ClaimRef, StuckDaemons]:
    claim = node.allocate(name, device)
    found = node.api.objects[CLAIM.plural, "ns", name]
    found["status"]["allocation"]["devices"]["config"] = by_mps()
    return claim, with_mps(node)


async def test_no_claim_waits_for_the_daemon_of_another(node: Node) -> None:
    stuck, daemons = shared_by_mps(node, "stuck", "gpu-0")
    starts = asyncio.create_task(node.preparer.prepare(stuck))
    await until(lambda: len(daemons.asked) == 1)

    other = node.allocate("other", "gpu-1")
    await asyncio.wait_for(node.preparer.prepare(other), 2)

    same = node.allocate("same", "gpu-0")
    with pytest.raises(HostError, match="is prepared for claim ns/stuck"):
        await node.preparer.prepare(same)
    assert node.files() == [other.uid]
    daemons.may.set()
    await starts
    assert node.files() == sorted([other.uid, stuck.uid])

    daemons.may.clear()
    ends = asyncio.create_task(node.preparer.unprepare(stuck))
    await until(lambda: len(daemons.asked) == 2)
    node.delete(stuck)
    follows = asyncio.create_task(node.preparer.prepare(same))
    await asyncio.wait_for(node.preparer.unprepare(other), 2)
    assert daemons.wanted == set()  # it would be started again
    assert not follows.done()  # until the daemon of its GPU has ended
    daemons.may.set()
    await asyncio.gather(ends, follows)
    assert node.files() == [same.uid]
    assert list(node.journal.load()) == [same.uid]


async def test_a_claim_that_is_unprepared_while_its_daemon_starts_is_refused(node: Node) -> None:
    stuck, daemons = shared_by_mps(node, "stuck", "gpu-0")
    starts = asyncio.create_task(node.preparer.prepare(stuck))
    await until(lambda: len(daemons.asked) == 1)
    node.journal.save({})  # by another agent
    daemons.may.set()
    with pytest.raises(HostError, match="was unprepared before it had its devices"):
        await starts
    assert node.files() == []
