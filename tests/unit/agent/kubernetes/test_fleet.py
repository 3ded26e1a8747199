# SPDX-License-Identifier: Apache-2.0
"""The table of GPU nodes, from objects as the API server has them."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from nvct.agent.condition.condition import TYPE
from nvct.agent.kubernetes import fleet
from nvct.agent.kubernetes.cluster import ClusterError, Kind, Object


def node(name: str, labels: dict[str, str], **allocatable: str) -> Object:
    gpus = {f"nvidia.com/{key}": value for key, value in allocatable.items()}
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "250m", **gpus}},
    }


def pod(name: str, at: str, ready: str, app: str = "nvct") -> Object:
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": app}},
        "spec": {"nodeName": at},
        "status": {"conditions": conditions},
    }


def event(name: str, at: str, message: str, kind: str = "Warning") -> Object:
    involved = {"name": name}
    return {"involvedObject": involved, "lastTimestamp": at, "message": message, "type": kind}


class FakeCluster:
    """Has some objects by the plural of their kind."""

    def __init__(self, **objects: list[Object]) -> None:
        self.objects = objects

    async def find_all(
        self, kind: Kind, namespace: str = "", labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        assert bool(namespace) == kind.is_namespaced
        if kind.plural == "pods":
            assert labels in (fleet.AGENT, fleet.WORKER)
            return self.objects.get("workers" if labels == fleet.WORKER else "pods", [])
        assert not labels
        if kind.plural == "resourceslices" and kind.version != "v1beta1":
            raise ClusterError("no such version", status=404)
        return self.objects.get(kind.plural, [])


def shown(cluster: Any) -> list[fleet.GpuNode]:
    return asyncio.run(fleet.nodes(cluster, "nvct"))


def test_a_node_has_its_gpus_its_driver_and_the_reason_why_it_is_not_ready() -> None:
    labels = {"nvidia.com/cuda.driver-version.full": "580.1", "nvidia.com/gpu.product": "H100"}
    cluster = FakeCluster(
        nodes=[
            node("refused", {}),
            node("good", labels, gpu="8"),
            node("cpu", {}),
            node("foreign", {}, gpu="2"),
            node("silent", {}, gpu="0"),
        ],
        pods=[
            pod("a", "good", "True"),
            pod("b", "refused", "False"),
            pod("c", "silent", "False"),
            {"metadata": {"name": "d", "labels": {}}, "spec": {}, "status": {}},
        ],
        events=[
            event("b", "2026-01-01T00:00:02Z", "Readiness probe failed:\nnvct: refused"),
            event("b", "2026-01-01T00:00:01Z", "older"),
            event("c", "2026-01-01T00:00:01Z", "Pulled", kind="Normal"),
        ],
    )
    assert shown(cluster) == [
        ("foreign", {"nvidia.com/gpu": 2}, "", "", "", "Unknown", fleet.NO_AGENT),
        ("good", {"nvidia.com/gpu": 8}, "580.1", "H100", "Ready", "Unknown", ""),
        ("refused", {}, "", "", "NotReady", "Unknown", "Readiness probe failed: nvct: refused"),
        ("silent", {}, "", "", "NotReady", "Unknown", "no event says why"),
    ]


def test_a_worker_that_fails_is_the_reason_why_its_agent_waits() -> None:
    cluster = FakeCluster(
        nodes=[node("one", {}), node("two", {})],
        pods=[pod("a", "one", "False"), pod("b", "two", "True")],
        workers=[pod("w", "one", "False"), pod("v", "two", "False")],
        events=[
            event("a", "2026-01-01T00:00:02Z", "Readiness probe failed"),
            event("w", "2026-01-01T00:00:01Z", "Back-off restarting failed container toolkit"),
            event("v", "2026-01-01T00:00:01Z", "it starts again"),
        ],
    )
    assert [each.reason for each in shown(cluster)] == [
        "Back-off restarting failed container toolkit", ""
    ]  # fmt: skip


def test_a_thousand_replicas_are_shown_as_a_number() -> None:
    """The API server writes 1k for 1000, and other programs have resources of that prefix."""
    nodes = [node("shared", {}, gpu="1k", rdma="1.5k"), node("odd", {}, gpu="many")]
    (only,) = shown(FakeCluster(nodes=nodes, pods=[], events=[]))
    assert only.gpus == {"nvidia.com/gpu": 1000, "nvidia.com/rdma": 1500}


def test_during_an_upgrade_the_ready_pod_of_a_node_counts() -> None:
    pods = [pod("a", "one", "True"), pod("b", "one", "False")]
    for order in (pods, pods[::-1]):
        (only,) = shown(FakeCluster(nodes=[node("one", {})], pods=order, events=[]))
        assert (only.agent, only.reason) == ("Ready", "")


def test_agents_of_a_release_with_another_name_are_found_and_other_programs_are_not() -> None:
    """The chart's nameOverride is in the label, and `agent` is a component of other programs."""
    mine = pod("a", "one", "True", app="gpus")
    mine["metadata"]["annotations"] = {fleet.MARK: "0123"}
    pods = [mine, pod("b", "two", "True", app="other")]
    found = shown(FakeCluster(nodes=[node("one", {}), node("two", {})], pods=pods, events=[]))
    assert [(each.name, each.agent) for each in found] == [("one", "Ready")]


def test_the_condition_of_a_node_says_whether_pods_can_have_its_gpus() -> None:
    now = datetime.now(timezone.utc)

    def said(name: str, status: str, reason: str, beat: datetime) -> Object:
        condition = {
            "type": TYPE, "status": status, "reason": reason, "message": f"{reason}: so it is",
            "lastHeartbeatTime": f"{beat:%Y-%m-%dT%H:%M:%SZ}",
        }  # fmt: skip
        found = node(name, {}, gpu="8")
        found["status"]["conditions"] = [{"type": "Ready", "status": "True"}, condition]
        return found

    old = now - timedelta(hours=2)
    nodes = [
        said("good", "True", "GPUsAreOffered", now),
        said("hung", "False", "NvmlHung", now),
        said("ill", "True", "DeviceUnhealthy", now),
        said("old", "True", "GPUsAreOffered", old),
        said("strange", "True", "GPUsAreOffered", now),
    ]
    for key in ("reason", "message", "lastHeartbeatTime"):  # optional ones
        del nodes[-1]["status"]["conditions"][1][key]
    found = shown(FakeCluster(nodes=nodes, pods=[pod("a", "good", "True")], events=[]))
    assert [(each.name, each.ready, each.reason) for each in found] == [
        ("good", "True", ""),
        ("hung", "False", "NvmlHung: so it is"),
        ("ill", "True", "DeviceUnhealthy: so it is"),
        ("old", "Unknown", f"the agent has been silent since {old:%Y-%m-%dT%H:%M:%SZ}"),
        ("strange", "Unknown", "the condition does not say when it was written"),
    ]


def test_a_node_of_dra_has_the_devices_of_its_slices() -> None:
    def device(kind: str) -> Object:
        return {"name": kind, "basic": {"attributes": {"type": {"string": kind}}}}

    def of(driver: str, *kinds: str) -> Object:
        spec = {"driver": driver, "nodeName": "a", "devices": [device(kind) for kind in kinds]}
        return {"spec": spec}

    cluster = FakeCluster(
        nodes=[node("a", {})], pods=[], events=[],
        resourceslices=[of("gpu.nvidia.com", "gpu", "mig"), of("gpu.nvidia.com", "gpu"),
                        of("other.com", "gpu")],
    )  # fmt: skip

    (found,) = shown(cluster)

    assert found.gpus == {"gpu.nvidia.com": 2, "gpu.nvidia.com/mig": 1}
