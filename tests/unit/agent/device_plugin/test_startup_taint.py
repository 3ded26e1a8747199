# SPDX-License-Identifier: Apache-2.0
"""The startup taint goes when the Node has the resources, and not earlier."""

import asyncio
import contextlib
import copy
import io
from typing import Any, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import startup_taint
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.startup_taint import StartupTaint
from nvct.agent.kubernetes.cluster import Cluster, ClusterError, Kind
from tests.unit.agent.device_plugin.fake_kubelet import until

KEY = "nvct.dev/gpu-not-ready"
OTHER = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


class Api:
    """An API server with one Node, whose resourceVersion counts its changes."""

    def __init__(self) -> None:
        self.version = 1
        self.taints = [OTHER, {"key": KEY, "effect": "NoSchedule"}]
        self.allocatable: dict[str, str] = {}
        self.failures: list[ClusterError] = []
        self.changes_meanwhile = 0
        self.closed = 0

    async def find(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        assert (kind.name, namespace) == ("Node", "")
        if self.failures:
            raise self.failures.pop(0)
        if name != "node-1":
            return None
        found = {
            "metadata": {"name": name, "resourceVersion": str(self.version)},
            "spec": {"taints": copy.deepcopy(self.taints)},
            "status": {"allocatable": dict(self.allocatable)},
        }
        if self.changes_meanwhile:
            self.changes_meanwhile -= 1
            self.version += 1
        return found

    async def merge(self, kind: Kind, manifest: dict[str, Any], manager: str) -> dict[str, Any]:
        assert (kind.name, manager) == ("Node", startup_taint.MANAGER)
        assert manifest["metadata"]["name"] == "node-1"
        if manifest["metadata"]["resourceVersion"] != str(self.version):
            raise ClusterError("the object has been modified", status=409)
        self.taints = manifest["spec"]["taints"]
        self.version += 1
        return manifest

    async def close(self) -> None:
        self.closed += 1


@contextlib.asynccontextmanager
async def running(api: Api, listed: list[str], node: str = "node-1") -> Any:
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
        api.allocatable[GPU] = "0"
        await asyncio.sleep(0.05)
        assert len(api.taints) == 2
        api.changes_meanwhile = 2
        api.allocatable[GPU] = "8"
        await until(lambda: not taint.reason)
        assert api.taints == [OTHER]
        assert f"removed taint {KEY} of node node-1" in log.getvalue()
        await until(lambda: api.closed == 1)


async def test_a_failure_is_told_once_and_tried_again() -> None:
    api = Api()
    api.allocatable[GPU] = "8"
    api.failures = [ClusterError("the API server does not answer")] * 3
    async with running(api, [GPU]) as (taint, log):
        await until(lambda: not taint.reason)
        assert api.taints == [OTHER]
        assert log.getvalue().count("the API server does not answer") == 1


async def test_a_node_of_another_name_is_told() -> None:
    async with running(Api(), [GPU], node="node-2") as (taint, _):
        await until(lambda: "the cluster has no node node-2" in taint.reason)


async def test_without_the_taint_nothing_is_changed() -> None:
    api = Api()
    api.taints, api.allocatable = [OTHER], {GPU: "8"}
    async with running(api, [GPU]) as (taint, _):
        await until(lambda: not taint.reason)
        assert api.version == 1
