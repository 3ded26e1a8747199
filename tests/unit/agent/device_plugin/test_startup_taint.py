# SPDX-License-Identifier: Apache-2.0
"""The startup taint goes when the Node has the resources, and not earlier."""

import asyncio
import contextlib
import io
from typing import Any, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import startup_taint
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.startup_taint import StartupTaint
from nvct.agent.kubernetes.cluster import NODE, Cluster, ClusterError, Kind, Object
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import NAME, FakeApi

KEY = "nvct.dev/gpu-not-ready"
OTHER = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Api(FakeApi):
    """An API server with one Node, which somebody else may change after it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[ClusterError] = []
        self.changes_meanwhile = 0
        self.is_closed = False
        self.change(taints=[OTHER, {"key": KEY, "effect": "NoSchedule"}])

    @property
    def node(self) -> Any:
        return self.objects[NODE.plural, "", NAME]

    def change(self, **more: Any) -> None:
        """Change taints or what is allocatable."""
        self.put(NODE, {
            "metadata": {"name": NAME},
            "spec": {"taints": more.get("taints") or self.node["spec"]["taints"]},
            "status": {"allocatable": more.get("allocatable", {})},
        })  # fmt: skip

    async def find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        if self.failures:
            raise self.failures.pop(0)
        found = await super().find(kind, name, namespace)
        if self.changes_meanwhile:
            self.changes_meanwhile -= 1
            self.put(NODE, self.node)
        return found

    async def close(self) -> None:
        self.is_closed = True


@contextlib.asynccontextmanager
async def running(api: Api, listed: list[str], node: str = NAME) -> Any:
    log = io.StringIO()
    taint = StartupTaint(KEY, node, lambda: cast("Cluster", api), Log(target=log))
    task = asyncio.create_task(taint.run(lambda: listed))
    try:
        yield taint, log
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_taint, "POLL_S", 0.01)
    monkeypatch.setattr("nvct.agent.core.waiting.DELAYS_S", (0.01,))


async def test_it_goes_when_the_node_has_the_resources_and_other_taints_stay() -> None:
    api, listed = Api(), list[str]()
    async with running(api, listed) as (taint, log):
        await asyncio.sleep(0.05)
        assert taint.reason == "the kubelet has not read the list of devices yet"
        listed.append(GPU)
        await until(lambda: taint.reason == f"the Node has no allocatable {GPU} yet")
        api.change(allocatable={GPU: "0"})
        await asyncio.sleep(0.05)
        assert len(api.node["spec"]["taints"]) == 2
        api.changes_meanwhile = 2
        api.change(allocatable={GPU: "8"})
        await until(lambda: not taint.reason)
        assert api.node["spec"]["taints"] == [OTHER]
        assert f"removed taint {KEY} of node node-1" in log.getvalue()
        await until(lambda: api.is_closed)


async def test_a_failure_is_told_once_and_tried_again() -> None:
    api = Api()
    api.change(allocatable={GPU: "8"})
    api.failures = [ClusterError("the API server does not answer")] * 3
    async with running(api, [GPU]) as (taint, log):
        await until(lambda: not taint.reason)
        assert api.node["spec"]["taints"] == [OTHER]
        assert log.getvalue().count("the API server does not answer") == 1


async def test_a_node_of_another_name_is_told() -> None:
    async with running(Api(), [GPU], node="node-2") as (taint, _):
        await until(lambda: "the cluster has no node node-2" in taint.reason)


async def test_without_the_taint_nothing_is_changed() -> None:
    api = Api()
    api.change(taints=[OTHER], allocatable={GPU: "8"})
    version = api.node["metadata"]["resourceVersion"]
    async with running(api, [GPU]) as (taint, _):
        await until(lambda: not taint.reason)
        assert api.node["metadata"]["resourceVersion"] == version
