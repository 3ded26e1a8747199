# SPDX-License-Identifier: Apache-2.0
"""Events about GPUs on the Node and on pods: each once, and as many as the rights allow."""

import asyncio
import contextlib
import io
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.agent.condition import task
from nvct.agent.condition.task import DeviceEvents
from nvct.agent.core.logs import Log
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubernetes.cluster import EVENT, POD, Cluster, ClusterError, Kind, Object
from tests.unit.agent.kubelet.test_pod_resources import kubelet

PODS = {"train": "GPU-0", "share": "GPU-1::3", "split": "MIG-a", "idle": ""}
HELD = api.ListPodResourcesResponse()
for _name, _id in PODS.items():
    _pod = HELD.pod_resources.add(name=_name, namespace="team")
    if _id:
        _main = _pod.containers.add(name="main")
        _main.devices.add(resource_name="nvidia.com/gpu", device_ids=[_id])


class FakeCluster:
    """A cluster that keeps the Events; `refused` are the kinds that it refuses."""

    def __init__(self) -> None:
        self.events: list[Object] = []
        self.existing: set[str] = set()
        self.refused: dict[Kind, int] = {}

    async def find(self, kind: Kind, name: str, namespace: str) -> Object | None:
        assert (kind, namespace) == (POD, "team")
        self._check(kind)
        return {"metadata": {"uid": f"uid-of-{name}"}}

    async def create(self, kind: Kind, manifest: Object) -> Object:
        assert kind == EVENT
        self._check(kind)
        if manifest["metadata"]["name"] in self.existing:
            raise ClusterError("it is there already", status=409)
        self.events.append(manifest)
        return manifest

    def _check(self, kind: Kind) -> None:
        if kind in self.refused:
            raise ClusterError(f"may not {kind.name}", status=self.refused[kind])


class Lab:
    def __init__(self, folder: str) -> None:
        self.cluster = FakeCluster()
        self.log = io.StringIO()
        self.socket = Path(folder, "kubelet.sock")
        self.notices: list[dict[str, Any]] = []
        self.start()

    def start(self, **more: bool) -> None:
        self.events = DeviceEvents("node-1", str(self.socket), Log(target=self.log), **more)

    def add(self, *devices: str, is_warning: bool = True, at: float | None = None) -> None:
        self.notices.append({
            "number": len(self.notices) + 1, "at": time.time() if at is None else at,
            "reason": "GPUUnhealthy" if is_warning else "GPUHealthy", "message": "XID 48",
            "is_warning": is_warning, "devices": list(devices),
        })  # fmt: skip

    def tell(self, *, has_kubelet: bool = True) -> list[str]:
        """Return the objects of the Events that are made."""
        self.cluster.events.clear()

        async def run() -> None:
            async with contextlib.AsyncExitStack() as stack:
                if has_kubelet:
                    await stack.enter_async_context(kubelet(self.socket, "v1", HELD))
                stack.push_async_callback(self.events.close)
                document = {"health": {"notices": self.notices}}
                await self.events.tell(cast("Cluster", self.cluster), document)

        asyncio.run(run())
        return [event["involvedObject"]["name"] for event in self.cluster.events]


def test_pods_have_no_events_where_they_are_switched_off(lab: Lab) -> None:
    lab.start(of_pods=False)
    lab.cluster.refused = {POD: 403}
    lab.add("GPU-0")
    assert lab.tell() == ["node-1"]
    assert lab.events.problem.text == ""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        yield Lab(folder)


@pytest.mark.parametrize(
    ("devices", "objects"),
    [
        (["GPU-0"], ["node-1", "train"]),
        (["GPU-1", "MIG-a"], ["node-1", "share", "split"]),
        (["GPU-7"], ["node-1"]),
    ],
)
def test_the_pods_that_have_the_device_are_told(
    devices: list[str], objects: list[str], lab: Lab
) -> None:
    lab.add(*devices)

    assert lab.tell() == objects
    assert lab.tell() == [], "each is told once"


def test_an_event_has_what_the_api_wants(lab: Lab) -> None:
    lab.add("GPU-0")
    lab.tell()

    of_node, of_pod = lab.cluster.events
    assert of_node["metadata"]["namespace"] == "default"
    assert re.fullmatch(r"node-1\.[0-9a-f]{16}", of_node["metadata"]["name"])
    assert of_node["involvedObject"]["uid"] == "node-1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", of_node["firstTimestamp"])
    assert of_pod["metadata"]["namespace"] == "team"
    assert of_pod["involvedObject"]["uid"] == "uid-of-train"
    assert {event["type"] for event in lab.cluster.events} == {"Warning"}


def test_good_news_is_for_the_node_alone(lab: Lab) -> None:
    lab.add("GPU-0", is_warning=False)
    assert lab.tell() == ["node-1"]
    assert lab.cluster.events[0]["type"] == "Normal"


def test_what_happened_long_before_the_start_is_not_told(lab: Lab) -> None:
    lab.add("GPU-0", at=time.time() - 3600)
    assert lab.tell() == []


def test_what_an_earlier_process_could_not_tell_is_told_once(lab: Lab) -> None:
    """The API server was away, and the agent was started again."""
    lab.add("GPU-0", at=time.time() - 60)
    first = lab.tell()
    names = {one["metadata"]["name"] for one in lab.cluster.events}
    assert (first, len(names)) == (["node-1", "train"], 2)

    lab.start()
    lab.cluster.existing = names
    lab.add("GPU-1")
    assert lab.tell() == ["node-1", "share"]
    assert lab.log.getvalue() == ""


def test_a_clock_that_is_set_back_silences_no_failure(lab: Lab) -> None:
    assert lab.tell() == []
    lab.add("GPU-0", at=time.time() - 3600)
    assert lab.tell() == ["node-1", "train"]


def test_without_the_kubelets_service_there_are_events_of_the_node(lab: Lab) -> None:
    lab.add("GPU-0")
    assert lab.tell(has_kubelet=False) == ["node-1"]


def test_without_the_right_to_get_pods_the_log_says_so_once(lab: Lab) -> None:
    lab.cluster.refused = {POD: 403}
    lab.add("GPU-0")
    lab.add("GPU-0")

    assert lab.tell() == ["node-1", "node-1"]
    assert lab.log.getvalue().count("an Event about a GPU is missing: may not Pod") == 1


def test_events_wait_for_an_api_server_that_does_not_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "RETRY_S", 0.0)
    lab.cluster.refused = {EVENT: 0}
    lab.add("GPU-0")
    assert lab.tell() == []

    lab.cluster.refused = {}

    assert lab.tell() == ["node-1", "train"]


@pytest.mark.parametrize("document", [{}, {"health": {}}, {"health": None}])
def test_an_agent_without_health_has_no_events(document: dict[str, Any], lab: Lab) -> None:
    """Such as one whose device plugin has not started yet."""
    asyncio.run(lab.events.tell(cast("Cluster", lab.cluster), document))
    assert lab.cluster.events == []
