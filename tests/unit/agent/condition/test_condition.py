# SPDX-License-Identifier: Apache-2.0
"""The condition of a Node: its content, when it is written, and what a refusal does."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nvct.agent.condition import condition, task
from nvct.agent.core.logs import Log
from nvct.agent.kubernetes import node_news
from nvct.agent.kubernetes.cluster import EVENT, NODE, ClusterError, Kind, Object
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.doctor.test_agent_status import PLUGIN, document, resource

OTHERS = {"type": "Ready", "status": "True"}


class FakeCluster:
    """A cluster of one Node, whose conditions have one manager each.

    Attributes:
        node: None if it was deleted.
        failure: raised by each request, if there is one.
        writes: how many there were.
    """

    def __init__(self) -> None:
        self.node: Object | None = {"metadata": {"uid": "u1"}, "status": {"conditions": [OTHERS]}}
        self.events: list[Object] = []
        self.failure: ClusterError | None = None
        self.may_create = True
        self.writes = 0

    async def find(self, kind: Kind, name: str) -> Object | None:
        assert (kind, name) == (NODE, "node-1")
        if self.failure:
            raise self.failure
        return self.node

    async def apply(self, kind: Kind, manifest: Object, manager: str, part: str) -> Object:
        assert (kind, manager, part) == (NODE, "nvct-health", "status")
        assert manifest["metadata"] == {"name": "node-1", "uid": "u1"}
        assert self.node is not None
        self.node["status"]["conditions"] = [OTHERS, *manifest["status"]["conditions"]]
        self.writes += 1
        return self.node

    async def create(self, kind: Kind, manifest: Object) -> Object:
        assert kind == EVENT
        if not self.may_create:
            raise ClusterError("may not create events", status=403)
        self.events.append(manifest)
        return manifest

    async def close(self) -> None:
        pass

    @property
    def conditions(self) -> list[Object]:
        """Those of the Node, the others' first."""
        assert self.node is not None
        found: list[Object] = self.node["status"]["conditions"]
        return found

    def written(self) -> tuple[str, str]:
        """Return status and reason of the condition."""
        found = condition.find(self.node or {})
        return (found["status"], found["reason"]) if found else ("", "")


class Lab:
    """An agent's /status, a cluster, and the task between them."""

    def __init__(self) -> None:
        self.status = document(resource())
        self.cluster = FakeCluster()
        self.log = io.StringIO()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[task.NodeCondition]:
        log = Log(target=self.log)
        work = task.NodeCondition(
            lambda: self.cluster,  # type: ignore[arg-type,return-value]
            "node-1", lambda: self.status, log,
        )  # fmt: skip
        runs = asyncio.create_task(work.run())
        try:
            yield work
        finally:
            runs.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runs


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(task, "LOOK_S", 0.02)
    monkeypatch.setattr(task, "SETTLE_S", 0.2)
    monkeypatch.setattr(task, "START_S", 0.2)
    monkeypatch.setattr(task, "REPAIR_S", 0.3)
    monkeypatch.setattr("nvct.agent.core.waiting.DELAYS_S", (0.02, 0.1))
    return Lab()


LOST = document(resource("lost", reason="the kubelet was restarted"))


async def test_a_fault_is_written_with_its_remedy_and_as_an_event(lab: Lab) -> None:
    async with lab.running() as work:
        await until(lambda: lab.cluster.written() == ("True", "GPUsAreOffered"))
        lab.status = LOST
        await until(lambda: lab.cluster.written() == ("False", "ResourceNotListed"))
        lab.status = document(resource())
        await until(lambda: lab.cluster.written() == ("True", "GPUsAreOffered"))
        assert work.describe()[0]["reason"] == "GPUsAreOffered"
    kinds = [(event["type"], event["reason"]) for event in lab.cluster.events]
    assert kinds == [
        ("Normal", "GPUsAreOffered"), ("Warning", "ResourceNotListed"), ("Normal", "GPUsAreOffered"),
    ]  # fmt: skip
    message = lab.cluster.events[1]["message"]
    assert message.startswith("nvidia.com/gpu is lost: the kubelet was restarted. Read ")
    assert lab.cluster.conditions[0] is OTHERS


@pytest.mark.parametrize(
    ("unhealthy", "more", "reason", "message"),
    [
        ("MIG devices of this GPU are being changed", {}, "DeviceWithheld",
         "Wait: they are offered again when the change or the probation is over."),
        ("x", {"nvml": {"state": "released", "reason": "the driver is being replaced"}},
         "DriverBeingReplaced", "the driver is being replaced. Wait for the new driver"),
    ],
)  # fmt: skip
async def test_what_was_planned_is_no_warning_and_asks_for_nothing(
    unhealthy: str, more: dict[str, Any], reason: str, message: str, lab: Lab
) -> None:
    async with lab.running():
        withheld = [] if more else ["GPU-1"]
        offered = resource(devices=1, unhealthy={"GPU-1": unhealthy}, withheld=withheld)
        lab.status = document(offered, **more)
        await until(lambda: lab.cluster.written() == ("False", reason))
    event = lab.cluster.events[-1]
    assert (event["type"], event["reason"]) == ("Normal", reason)
    assert message in event["message"]
    assert more or f"GPU-1: {unhealthy}. " in event["message"]


async def test_a_condition_that_somebody_has_removed_is_written_again(lab: Lab) -> None:
    """Or that went with its Node, which the kubelet has made again."""

    async with lab.running():
        await until(lambda: lab.cluster.writes == 1)
        node_news.tell("node-1", {"metadata": {}, "status": {"conditions": [OTHERS]}})
        assert lab.cluster.writes == 1, "the watch may be late"
        await until(lambda: lab.cluster.writes == 2)
        await asyncio.sleep(0.4)
        assert lab.cluster.writes == 2
        node_news.tell("node-1", None)
        node_news.tell("node-1", lab.cluster.node)
        await asyncio.sleep(0.4)
        assert lab.cluster.writes == 2


async def test_what_passes_soon_is_not_written(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "SETTLE_S", 30.0)

    async with lab.running():
        await until(lambda: lab.cluster.writes == 1)
        lab.status = LOST
        await asyncio.sleep(0.3)
        lab.status = document(resource())
        await asyncio.sleep(0.1)
    assert lab.cluster.writes == 1


async def test_an_agent_that_starts_has_more_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent before it offers stays with the kubelet in that time."""
    monkeypatch.setattr(task, "START_S", 30.0)
    lab.status = LOST

    async with lab.running():
        await asyncio.sleep(0.5)
        assert lab.cluster.writes == 0
        lab.status = document(resource())
        await until(lambda: lab.cluster.writes == 1)
        lab.status = LOST
        await until(lambda: lab.cluster.written() == ("False", "ResourceNotListed"))


async def test_the_time_of_the_last_change_stays_and_the_heartbeat_does_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "HEARTBEAT_S", 0.05)
    lab.cluster.conditions.append({
        "type": condition.TYPE, "status": "True", "reason": "GPUsAreOffered", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    })  # fmt: skip
    async with lab.running():
        await until(lambda: lab.cluster.writes >= 3)
    (_, found) = lab.cluster.conditions
    assert found["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert found["lastHeartbeatTime"] > "2026-11-01"
    assert lab.cluster.events == []


async def test_a_condition_of_its_type_that_lacks_fields_is_replaced(lab: Lab) -> None:
    before = {"type": condition.TYPE, "status": "True", "reason": "Another"}
    lab.cluster.conditions.append(before)
    async with lab.running():
        await until(lambda: lab.cluster.written() == ("True", "GPUsAreOffered"))
    assert lab.cluster.conditions[1]["lastTransitionTime"] > "2026-11-01"


async def test_a_refusal_is_said_once_and_tried_again(lab: Lab) -> None:
    lab.cluster.failure = ClusterError("may not get nodes", hint="grant it", status=403)

    async with lab.running() as work:
        await until(lambda: work.describe()[0]["problem"] == "may not get nodes (grant it)")
        await asyncio.sleep(0.3)
        lab.cluster.failure = None
        await until(lambda: lab.cluster.written()[0] == "True")
        assert work.describe()[0]["problem"] == ""
    assert lab.log.getvalue().count("may not get nodes") == 1


async def test_without_the_right_to_make_events_the_condition_is_written(lab: Lab) -> None:
    lab.cluster.may_create = False

    async with lab.running():
        await until(lambda: lab.cluster.written()[0] == "True")
        await until(lambda: "may not create events" in lab.log.getvalue())


async def test_a_node_that_is_not_there_is_named(lab: Lab) -> None:
    lab.cluster.node = None

    async with lab.running():
        await until(lambda: "the cluster has no Node node-1" in lab.log.getvalue())


def test_a_node_without_a_gpu_has_no_condition() -> None:
    assert condition.of(document(state="waiting"), [PLUGIN]) is None
