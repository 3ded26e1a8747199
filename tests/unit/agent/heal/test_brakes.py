# SPDX-License-Identifier: Apache-2.0
"""The brakes over an API server in memory: Leases by compare-and-swap, the stop, resets an hour."""

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.heal import brakes as module
from nvct.agent.heal.brakes import FAILING, STOP, STOPPED, Brakes, Limits, limits
from nvct.agent.health.store import Store
from nvct.agent.kubernetes.cluster import CONFLICT, Cluster, ClusterError, Kind, Object
from nvct.errors import UsageError
from tests.unit.agent.device_plugin.fake_kubelet import until

LEASE_S, LOOKS = 0.4, 1000
AWAY = "the API server https://10.0.0.1 does not answer: no route"


class Server:
    """Leases as an API server keeps them: each write has a version, an old version a conflict."""

    def __init__(self, *names: str) -> None:
        self.leases: dict[str, Object] = {}
        self.version, self.requests, self.is_away = 0, 0, False
        for name in names:
            self.leases[name] = {"metadata": {"name": name, "namespace": "nvct"}}
            self._store(name)

    async def find(self, kind: Kind, name: str) -> Object | None:
        await self._reached(kind)
        return deepcopy(self.leases.get(name))

    async def merge(self, kind: Kind, manifest: Object, manager: str) -> Object:
        await self._reached(kind)
        assert manager == module.MANAGER
        name, version = (manifest["metadata"][key] for key in ("name", "resourceVersion"))
        if name not in self.leases:
            raise ClusterError("there is none", status=404)
        if version != self.leases[name]["metadata"]["resourceVersion"]:
            raise ClusterError("the object has been modified", status=CONFLICT)
        _merge(self.leases[name], deepcopy(manifest))
        self._store(name)
        return deepcopy(self.leases[name])

    def holders(self) -> list[str]:
        specs = (lease.get("spec", {}) for lease in self.leases.values())
        return [spec["holderIdentity"] for spec in specs if "holderIdentity" in spec]

    async def _reached(self, kind: Kind) -> None:
        assert kind == module.LEASE
        self.requests += 1
        await asyncio.sleep(0)
        if self.is_away:
            raise ClusterError(AWAY)

    def _store(self, name: str) -> None:
        self.version += 1
        self.leases[name]["metadata"]["resourceVersion"] = str(self.version)


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7396)."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


@pytest.fixture
def server() -> Server:
    return Server("nvct-heal-0", "nvct-heal-1", STOP)


def of(server: Server, node: str, folder: Path | None = None, **more: float) -> Brakes:
    given: dict[str, Any] = {"nodes": 2, "stop": 0, "lease_s": LEASE_S, **more}
    store = Store(str(folder or "/proc/none"), name=module.RESETS)
    return Brakes(cast("Cluster", server), node, Limits(**given), store, Log(target=io.StringIO()))


@contextlib.asynccontextmanager
async def freed(*nodes: Brakes) -> AsyncIterator[None]:
    """End the renewals of nodes, as the ends of their processes do."""
    try:
        yield
    finally:
        await died(nodes)


async def died(nodes: Sequence[Brakes]) -> None:
    for node in nodes:
        if node._renewal:
            node._renewal.cancel()
            await asyncio.gather(node._renewal, return_exceptions=True)


async def took(node: Brakes) -> bool:
    return not await node.take()


async def test_so_many_nodes_heal_at_once_and_the_next_after_one_of_them(server: Server) -> None:
    a, b, c = (of(server, name) for name in "abc")
    async with freed(a, b, c):
        assert [await node.take() for node in (a, b)] == ["", ""]
        assert await c.take() == "2 nodes heal already: a, b"
        assert await a.take() == ""
        await b.release()
        await until(lambda: sorted(server.holders()) == ["a"])
        await until_taken(c)
        assert sorted(server.holders()) == ["a", "c"]


async def until_taken(node: Brakes) -> None:
    for _ in range(LOOKS):
        if await took(node):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(await node.take())


async def test_a_lease_is_kept_as_long_as_it_is_renewed_and_free_after_its_holder(
    server: Server,
) -> None:
    a, b = of(server, "a", nodes=1), of(server, "b", nodes=1)
    async with freed(a, b):
        assert await took(a)
        for _ in range(20):
            assert not await took(b)
            await asyncio.sleep(LEASE_S / 5)
        await died([a])
        await until_taken(b)
        assert server.holders() == ["b"]


async def test_the_clocks_of_nodes_do_not_matter(server: Server) -> None:
    spec = {"holderIdentity": "a", "renewTime": "2001-01-01T00:00:00.000000Z",
            "leaseDurationSeconds": LEASE_S}  # fmt: skip
    server.leases["nvct-heal-0"]["spec"] = spec
    b = of(server, "b", nodes=1)
    assert await b.take() == "1 nodes heal already: a"


async def test_the_next_process_of_a_node_has_its_lease_and_can_free_it(server: Server) -> None:
    a = of(server, "a", nodes=1)
    assert await took(a)
    await a.close()
    assert server.holders() == ["a"]
    later = of(server, "a", nodes=1)
    async with freed(later):
        assert await took(later)
    await of(server, "a", nodes=1).release()
    assert server.holders() == []


async def test_without_the_api_server_nobody_begins_and_who_heals_goes_on(server: Server) -> None:
    a, b = of(server, "a"), of(server, "b")
    async with freed(a, b):
        assert await took(a)
        server.is_away = True
        why = f"healing waits for the API server: {AWAY}"
        assert await b.take() == await a.take() == why  # nor does a with one more GPU
        await asyncio.sleep(LEASE_S)
        await a.keep()
        assert server.holders() == ["a"]
        await a.release()
        server.is_away = False
        await until_taken(b)


async def test_without_a_limit_no_lease_is_needed() -> None:
    node = of(Server(), "a", nodes=0, stop=5)
    assert await took(node)
    await node.release()


async def test_who_waits_asks_now_and_then(server: Server) -> None:
    a, b = of(server, "a", nodes=1, lease_s=60), of(server, "b", nodes=1, lease_s=60)
    async with freed(a, b):
        assert await took(a)
        answers = [await b.take()]
        before = server.requests
        answers += [await b.take() for _ in range(10)]
        assert server.requests == before
        assert set(answers) == {"1 nodes heal already: a"}


async def test_a_lease_that_is_missing_is_named() -> None:
    assert "no Lease nvct-heal-stop" in await of(Server("nvct-heal-0"), "a", nodes=1).take()
    assert "no Lease nvct-heal-0" in await of(Server(STOP), "a", nodes=1).take()


async def test_many_nodes_that_fail_together_stop_all_until_a_person_ends_that(
    server: Server,
) -> None:
    nodes = [of(server, name, stop=3) for name in "abcde"]
    async with freed(*nodes):
        answers = [await node.take() for node in nodes]
        assert answers[:2] == ["", ""]
        why = "healing is stopped in this cluster: 3 nodes failed within ten minutes: a, b, c"
        opens = module.OPENS.format("nvct")
        assert all(text == f"{why}; to resume: {opens}" for text in answers[2:])
        assert "is stopped" in await nodes[0].take(), "it heals no further GPU"
        assert sorted(server.holders()) == ["a", "b"], "they heal to the end"
        for node in nodes[:2]:
            await node.release()
        assert "is stopped" in await of(server, "f").take()

        del server.leases[STOP]["metadata"]["annotations"][STOPPED]
        await until_taken(nodes[2])
        await until_taken(nodes[3])  # who waited is not counted again
        assert not await took(nodes[4])


async def test_all_nodes_at_once_are_counted_and_stop(server: Server) -> None:
    nodes = [of(server, f"node-{number}", stop=5) for number in range(50)]
    async with freed(*nodes):
        answers = await asyncio.gather(*(node.take() for node in nodes))
        assert answers.count("") <= 2
        await until(lambda: STOPPED in server.leases[STOP]["metadata"].get("annotations", {}))


async def test_nodes_that_failed_long_ago_or_that_nobody_can_read_do_not_count(
    server: Server,
) -> None:
    for text in ('{"x": 1, "y": 2}', "[", '{"x": "now"}', '["x"]'):
        server.leases[STOP]["metadata"]["annotations"] = {FAILING: text}
        node = of(server, "a", stop=2)
        async with freed(node):
            assert await took(node)
            await node.release()


async def test_a_node_whose_clock_is_wrong_does_not_evade_the_stop_for_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c, wrong = (of(server, name, stop=3) for name in ("a", "b", "c", "wrong"))
    async with freed(a, b, c, wrong):
        assert [await took(node) for node in (a, b)] == [True, True]
        in_an_hour = time.time() + 3600
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: in_an_hour)
            await wrong.take()
        assert "3 nodes failed within ten minutes: a, b, c; " in await c.take()


@pytest.mark.parametrize("promised_s", [2**31 - 1, None])
async def test_a_stranger_that_promises_absurd_things_does_not_keep_a_lease(
    server: Server, monkeypatch: pytest.MonkeyPatch, promised_s: int | None
) -> None:
    monkeypatch.setattr(module, "LONGEST_S", LEASE_S)
    spec = {"holderIdentity": "a stranger", "leaseDurationSeconds": promised_s}
    server.leases["nvct-heal-0"]["spec"] = spec
    b = of(server, "b", nodes=1)
    async with freed(b):
        assert not await took(b)
        await until_taken(b)


async def test_resets_of_a_gpu_in_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    node = of(Server(), "a", tmp_path)
    groups = (["GPU-0"], ["GPU-0", "GPU-2"], ["GPU-1"])
    assert [node.count_reset(group) for group in groups] == ["", "", ""]
    later = of(Server(), "a", tmp_path)
    often = "GPU-0 was reset 2 times within an hour"
    assert later.count_reset(["GPU-0"]) == later.count_reset(["GPU-1", "GPU-0"]) == often
    assert later.count_reset(["GPU-1", "GPU-2"]) == ""
    now += module.HOUR_S
    assert later.count_reset(["GPU-0"]) == ""


async def test_a_reset_that_was_not_made_does_not_count(tmp_path: Path) -> None:
    node = of(Server(), "a", tmp_path)
    for gpu in ("GPU-1", "GPU-1"):
        assert node.count_reset(["GPU-0", gpu]) == ""
        node.uncount_reset(["GPU-0"])
    assert node.count_reset(["GPU-1"]).startswith("GPU-1 was reset 2 times")
    assert node.count_reset(["GPU-0"]) == ""


async def test_a_reset_that_cannot_be_counted_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in of(Server(), "a", tmp_path / "file").count_reset(["GPU-0"])


async def test_counts_that_are_damaged_are_begun_again(tmp_path: Path) -> None:
    Store(str(tmp_path), name=module.RESETS).write({"resets": {"GPU-0": "often"}})
    assert of(Server(), "a", tmp_path).count_reset(["GPU-0"]) == ""


def test_the_limits_are_variables() -> None:
    names = module.VARIABLES
    assert limits({}) == Limits()
    given = {names["nodes"]: "3", names["stop"]: "0", names["resets"]: "1"}
    assert limits(given) == Limits(nodes=3, stop=0, resets=1)
    for wrong in ({names["nodes"]: "1e3"}, {names["stop"]: "-1"}, {names["resets"]: "two"}):
        with pytest.raises(UsageError, match="is not a number below"):
            limits(wrong)
