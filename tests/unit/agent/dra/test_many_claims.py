# SPDX-License-Identifier: Apache-2.0
"""Many claims of a node: for whom the API server is asked, who waits, what a kill leaves."""

import asyncio
import os
import re

import pytest

from nvct.agent.dra import claims, journal, publisher
from nvct.agent.dra.classic import Classic
from nvct.agent.dra.devices import DRIVER, Device, Place
from nvct.agent.dra.journal import Prepared
from nvct.agent.kubelet.pod_resources import Claim, Holding
from nvct.errors import HostError
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import NAME
from tests.unit.agent.dra.test_prepare import GPUS, FakeInstances, Node, node, uid_of
from tests.unit.agent.machines import REPOSITORY

__all__ = ["node"]


def _documented(row: str) -> int:
    """Return the requests an hour of a row in the table of cost."""
    text = (REPOSITORY / "docs/kubernetes.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\|[^|]*{row}[^|]*\| (\d+) \|", text, re.MULTILINE)
    return int(found)


def test_the_slices_of_an_idle_node_cost_what_the_table_says() -> None:
    requests = 3 * 3600 / publisher.WATCH_S
    assert requests == _documented("list, watch resourceslices")
    # Beside the condition, the labels and the MIG manager.
    assert 30 + requests <= 60


@pytest.mark.parametrize("count", [16, 56])
@pytest.mark.parametrize("is_named", [True, False])
def test_an_idle_node_seldom_asks_for_its_claims(count: int, *, is_named: bool) -> None:
    """In an hour of rounds: for none that the kubelet names, else for one at a time, in turn."""
    now = 0.0
    doubts = claims.Doubts(lambda: now)
    prepared = {
        uid_of(str(n)): Prepared(namespace="ns", name=str(n), uid=uid_of(str(n)), entries=())
        for n in range(count)
    }
    named = {claim.full_name for claim in prepared.values()} if is_named else set()

    def round_() -> list[str]:
        asked = [claim.uid for claim in doubts.next(prepared, named)]
        for uid in asked:
            doubts.exists(uid)
        return asked

    first = round_()
    assert len(first) == (0 if is_named else count)  # at the start, nobody knows
    hours = count // 10
    asked = []
    while now < hours * 3600:
        now += 60
        asked += round_()
    assert len(asked) <= 1.1 * hours * (0 if is_named else _documented("if it names none"))
    if is_named:
        assert asked == []
        gone = named.pop()
        assert [prepared[uid].full_name for uid in round_()] == [gone]
        assert round_() == []
    else:
        assert set(asked) == set(prepared)  # each has its turn


def test_of_two_claims_with_one_name_the_kubelet_may_mean_either() -> None:
    older, newer = (
        Prepared(namespace="ns", name="same", uid=uid, entries=()) for uid in ("older", "newer")
    )
    assert claims.Doubts().next({"older": older, "newer": newer}, {"ns/same"}) == [older, newer]


async def test_the_lock_says_who_holds_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LOCK_S", 0.05)

    holder = rf"claim ns/a is prepared, by process {os.getpid()} of \S+"
    async with node.journal.locked("claim ns/a is prepared"):
        with pytest.raises(HostError, match=rf"has been locked for 0\.05 s: {holder}"):
            await node.preparer.prepare(node.allocate("b", "gpu-0"))
    await node.preparer.prepare(node.allocate("b", "gpu-0"))


def mig(gpu: int, start: int, size: int = 1) -> Device:
    return Device(
        name=f"gpu-{gpu}-mig-{start}", uuid="", gpu=f"GPU-{gpu}", attributes={}, capacity={},
        place=Place(0, start, size, 0),
    )  # fmt: skip


class SlowInstances(FakeInstances):
    """MIG devices of GPU 0 that are neither made nor destroyed until they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.working: list[int] = []
        self.is_killed = False

    async def make(self, gpu: str, place: Place) -> None:
        await self._work(gpu, place)
        await super().make(gpu, place)
        await asyncio.sleep(0)
        if self.is_killed:
            raise KilledError

    async def destroy(self, gpu: str, place: Place) -> None:
        await self._work(gpu, place)
        await super().destroy(gpu, place)
        if self.is_killed:
            raise KilledError

    async def uuids(self) -> dict[tuple[str, int, int, int], str]:
        return {(f"GPU-{n}", *place[:3]): f"GPU-{n}" for place in self.made for n in range(GPUS)}

    async def _work(self, gpu: str, place: Place) -> None:
        if gpu == "GPU-0":
            self.working.append(place.start)
            await self.may.wait()
            self.working.remove(place.start)


class KilledError(BaseException):
    """The process ends here."""


async def test_only_claims_of_the_same_gpu_wait_for_a_mig_device(node: Node) -> None:
    slow = SlowInstances()
    node.preparer.instances = slow  # type: ignore[assignment]
    for one in (mig(0, 0), mig(0, 1), mig(1, 0)):
        node.preparer.devices = {**node.preparer.devices, one.name: one}
    first, second, other, whole = (
        node.allocate(name, device)
        for name, device in (
            ("first", "gpu-0-mig-0"), ("second", "gpu-0-mig-1"), ("other", "gpu-1-mig-0"),
            ("whole", "gpu-2"),
        )
    )  # fmt: skip
    begun = [asyncio.create_task(node.preparer.prepare(one)) for one in (first, second)]
    await until(lambda: len(slow.working) == 1)
    for claim in (other, whole):
        await asyncio.wait_for(node.preparer.prepare(claim), 5)
        await asyncio.wait_for(node.preparer.unprepare(claim), 5)
    await asyncio.wait_for(node.preparer.write_specs(), 5)
    assert len(slow.working) == 1  # one at a time on a GPU
    slow.may.set()
    await asyncio.gather(*begun)
    assert node.files() == sorted([first.uid, second.uid])


async def test_places_that_overlap_exclude_each_other(node: Node) -> None:
    instances = SlowInstances()
    instances.may.set()
    node.preparer.instances = instances  # type: ignore[assignment]
    half, small, far = mig(0, 0, 4), mig(0, 3), mig(0, 4)
    node.preparer.devices = {one.name: one for one in (half, small, far)}
    held = node.allocate("held", half.name)
    await node.preparer.prepare(held)
    await node.preparer.prepare(node.allocate("far", far.name))
    wants = node.allocate("wants", small.name)
    with pytest.raises(HostError, match=f"{half.name} is prepared for claim ns/held"):
        await node.preparer.prepare(wants)
    node.delete(held)
    await node.preparer.prepare(wants)
    assert instances.made == {small.place, far.place}


@pytest.mark.parametrize("at", ["make", "destroy"])
async def test_a_process_that_is_killed_leaves_the_old_or_the_new_state(
    node: Node, at: str
) -> None:
    instances = SlowInstances()
    instances.may.set()

    def start() -> None:
        node.restart()
        node.preparer.instances = instances  # type: ignore[assignment]
        node.preparer.devices = {**node.preparer.devices, "gpu-0-mig-0": mig(0, 0)}

    start()
    claim = node.allocate("one", "gpu-0-mig-0")
    if at == "destroy":
        await node.preparer.prepare(claim)
    instances.is_killed = True
    work = node.preparer.prepare if at == "make" else node.preparer.unprepare
    with pytest.raises(KilledError):
        await work(claim)
    instances.is_killed = False
    start()
    assert list(node.journal.load()) == [claim.uid]
    assert len(await node.preparer.prepare(claim)) == 1
    assert (node.files(), len(instances.made)) == ([claim.uid], 1)
    start()
    node.delete(claim)
    await node.preparer.reconcile()
    assert (node.files(), instances.made, node.journal.load()) == ([], set(), {})


class FakePods:
    """The kubelet's service for pods' resources."""

    async def holdings(self) -> list[Holding]:
        own, other = (
            Holding("ns", "pod", "c", driver, ("gpu-1",), Claim(name, "ns", NAME))
            for driver, name in ((DRIVER, "mine"), ("other.example.com", "other"))
        )
        plain = Holding("ns", "old", "c", "nvidia.com/gpu", ("GPU-0::1",))
        return [plain, own, other]

    async def allocatable(self) -> dict[str, frozenset[str]]:
        return {}


def test_the_kubelet_names_the_claims_of_its_pods() -> None:
    classic = Classic("/missing")
    classic._pods = FakePods()  # type: ignore[assignment]
    asyncio.run(classic.look())
    assert classic.claims == {"ns/mine"}
    assert classic.taken == frozenset({"GPU-0"})
    assert asyncio.run(classic.holders()) == {"GPU-0": "ns/old"}
