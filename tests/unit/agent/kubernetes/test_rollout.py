# SPDX-License-Identifier: Apache-2.0
"""Waiting for a DaemonSet: until all nodes are done, or with the reason why not."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from nvct.agent.kubernetes import fleet
from nvct.agent.kubernetes.cluster import ClusterError, Kind, Object
from nvct.errors import HostError

NAME, NAMESPACE = "nvct-uninstall", "nvct"
LABELS = {"app.kubernetes.io/component": "uninstall"}


def daemon_set(ready: int, desired: int, observed: int = 1, updated: int | None = None) -> Object:
    return {
        "metadata": {"generation": 1},
        "spec": {"selector": {"matchLabels": LABELS}},
        "status": {
            "observedGeneration": observed, "desiredNumberScheduled": desired,
            "numberReady": ready, "updatedNumberScheduled": ready if updated is None else updated,
        },
    }  # fmt: skip


def pod(node: str, *messages: str) -> Object:
    statuses = [{"state": {"terminated": {"message": text}}} for text in messages]
    return {"spec": {"nodeName": node}, "status": {"initContainerStatuses": statuses}}


class FakeCluster:
    """Answers with each of some objects in turn, then always with the last; raises an error."""

    def __init__(
        self, *answers: Object | ClusterError | None, pods: list[Object] | None = None
    ) -> None:
        self.answers = list(answers)
        self.pods = pods or []

    async def find(self, kind: Kind, name: str, namespace: str) -> Object | None:
        assert (kind.plural, name, namespace) == ("daemonsets", NAME, NAMESPACE)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    async def find_all(
        self, kind: Kind, namespace: str, labels: Mapping[str, str]
    ) -> list[Object]:
        assert (kind.plural, namespace, dict(labels)) == ("pods", NAMESPACE, LABELS)
        return self.pods


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL_S", 0.001)


def waited(cluster: Any, timeout_s: float = 30.0) -> list[str]:
    sentences: list[str] = []
    asyncio.run(fleet.wait(cluster, NAME, NAMESPACE, timeout_s, sentences.append))
    return sentences


def test_it_waits_for_all_nodes_and_tells_what_they_said() -> None:
    cluster = FakeCluster(
        daemon_set(2, 2, observed=0),
        daemon_set(0, 2),
        ClusterError("the API server does not answer"),
        daemon_set(2, 2, updated=1),
        daemon_set(2, 2),
        pods=[pod("b", "removed X"), pod("a", "", "one\ntwo\n")],
    )
    assert waited(cluster) == [
        "waiting", "0 of 2 nodes are done", "1 of 2 nodes are done", "2 of 2 nodes are done",
        "a: one", "a: two", "b: removed X",
    ]  # fmt: skip


def test_a_cluster_without_a_node_for_it_is_done() -> None:
    assert waited(FakeCluster(daemon_set(0, 0))) == ["0 of 0 nodes are done"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (daemon_set(1, 3), "2 of 3 nodes are not done after 0.05 s"),
        (ClusterError("no answer"), "the nodes are not done after 0.05 s"),
        (None, "namespace nvct has no DaemonSet nvct-uninstall"),
        (ClusterError("may not get daemonsets", status=403), "may not get daemonsets"),
    ],
)
def test_it_says_why_it_gives_up(answer: Object | ClusterError | None, message: str) -> None:
    with pytest.raises(HostError, match=message):
        waited(FakeCluster(answer), timeout_s=0.05)


def test_it_says_which_nodes_are_not_done_and_why() -> None:
    """Its pods are gone when somebody reads this: helm has removed them with the release."""

    def failing(node: str, **status: Any) -> Object:
        return {"spec": {"nodeName": node}, "status": {"phase": "Pending", **status}}

    failed = {"terminated": {"exitCode": 1, "message": "reading\nthe engine does not answer\n"}}
    backs_off = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": failed}
    pulls = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    done = {"state": {"terminated": {"exitCode": 0, "message": "removed X"}}}
    is_ready = [{"type": "Ready", "status": "True"}]
    pods = [
        failing("c", initContainerStatuses=[done, backs_off]),
        failing("b", initContainerStatuses=[pulls]),
        failing("a"),
        {"spec": {"nodeName": "d"}, "status": {"conditions": is_ready}},
    ]
    said: list[str] = []
    cluster: Any = FakeCluster(daemon_set(1, 4), pods=pods)
    with pytest.raises(HostError, match="3 of 4 nodes"):
        asyncio.run(fleet.wait(cluster, NAME, NAMESPACE, 0.01, said.append))
    assert said == [
        "1 of 4 nodes are done",
        "a is not done: Pending",
        "b is not done: ImagePullBackOff",
        "c is not done: the engine does not answer",
    ]
