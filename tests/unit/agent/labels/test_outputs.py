# SPDX-License-Identifier: Apache-2.0
"""The own Node is written when a label is missing or another, and else only read."""

import asyncio
from typing import Any

import pytest

from nvct.agent.kubernetes import node_news
from nvct.agent.labels.outputs import NodeFeature, OwnNode
from nvct.agent.labels.settings import Settings

LABELS = {"nvidia.com/gpu.count": "8"}


class Server:
    """Stands for the API server with one Node."""

    def __init__(self) -> None:
        self.uid = "1"
        self.labels: dict[str, str] = {"example.com/mine": "1"}
        self.verbs: list[str] = []
        self.owners: list[dict[str, Any]] = []

    async def find(self, _kind: object, _name: str) -> dict[str, Any]:
        self.verbs.append("get")
        return {"metadata": {"uid": self.uid, "labels": dict(self.labels)}}

    async def apply(self, _kind: object, manifest: dict[str, Any], _manager: str) -> None:
        self.verbs.append("patch")
        self.labels |= manifest["metadata"]["labels"]

    async def close(self) -> None:
        pass


CHANGED = {"nvidia.com/gpu.count": "9"}


@pytest.mark.parametrize(
    ("before", "uid", "labels"),
    [
        ({}, "1", LABELS),
        # Only an apply removes what an earlier process wrote and this one leaves out.
        (LABELS, "1", LABELS),
        (LABELS, "1", {}),
        ({}, "2", LABELS),  # the Node was made again
    ],
)
def test_labels_are_written_once(before: dict[str, str], uid: str, labels: dict[str, str]) -> None:
    server = Server()
    server.labels |= before
    node = OwnNode(server, "node")  # type: ignore[arg-type]
    if uid != server.uid or not labels:
        asyncio.run(node.write(LABELS))
        server.uid, server.verbs = uid, []
    for verbs in (["get", "patch"], ["get"]):
        asyncio.run(node.write(labels))
        assert server.verbs == verbs
        server.verbs = []


@pytest.mark.parametrize("change", [{}, CHANGED])
def test_a_label_that_somebody_has_changed_or_removed_is_written_again(
    change: dict[str, str],
) -> None:
    server = Server()
    node = OwnNode(server, "node")  # type: ignore[arg-type]
    asyncio.run(node.write(LABELS))
    server.labels, server.verbs = change, []
    asyncio.run(node.write(LABELS))
    assert (server.verbs, server.labels) == (["get", "patch"], LABELS)


def test_a_watch_tells_that_labels_are_gone() -> None:
    """Of another Node, of a deleted one, and of the time before a write, nothing follows."""
    server = Server()
    node = OwnNode(server, "node")  # type: ignore[arg-type]
    without: dict[str, Any] = {"metadata": {"uid": "1"}}
    assert not node.lacks(LABELS)
    node_news.tell("other", without)
    node_news.tell("node", None)
    assert not node.lacks(LABELS)
    node_news.tell("node", without)
    assert node.lacks(LABELS)
    asyncio.run(node.write(LABELS))
    assert not node.lacks(LABELS)
    node_news.tell("node", {"metadata": {"labels": {**LABELS, "a": "b"}}})
    assert not node.lacks(LABELS)
    node_news.tell("node", without)
    assert node.lacks(LABELS)
    asyncio.run(node.close())
    node_news.tell("node", {"metadata": {"labels": LABELS}})
    assert node.lacks(LABELS), "nobody is told any more"


def test_a_bare_pod_owns_no_node_feature_and_a_pod_of_a_daemonset_does() -> None:
    told: list[str] = []

    class Pods(Server):
        async def find(self, _kind: Any, _name: str, _namespace: str = "") -> Any:
            return {"metadata": {"uid": "p", "ownerReferences": self.owners}}

    server = Pods()
    known = Settings(node_name="node", namespace="ns", pod_name="gfd-1")
    output = NodeFeature(server, known, told.append)  # type: ignore[arg-type]
    for kind in ("ReplicaSet", "DaemonSet"):
        server.owners = [{"kind": kind, "name": "gfd", "controller": True}]
        owners = asyncio.run(output._owners())
        assert [each["kind"] for each in owners] == (
            ["DaemonSet", "Pod"] if kind == "DaemonSet" else []
        )
    assert told == ["the NodeFeature object has no owner: gfd-1 does not belong to a DaemonSet"]
