# SPDX-License-Identifier: Apache-2.0
"""The patch of a Node: only what differs, and only labels that are there."""

from __future__ import annotations

from typing import Any

import pytest

from nvct.agent.mig_manager import node_labels
from nvct.agent.mig_manager.node_labels import REASON, STATE

PLUGIN, EXPORTER, DCGM = (
    f"nvidia.com/gpu.deploy.{name}" for name in ("device-plugin", "dcgm-exporter", "dcgm")
)


def node(labels: dict[str, str] | None = None, reason: str = "") -> dict[str, Any]:
    annotations = {REASON: reason} if reason else {}
    return {"metadata": {"name": "node-1", "labels": labels, "annotations": annotations}}


def test_a_node_without_labels_asks_for_nothing() -> None:
    assert node_labels.wanted(node()) == node_labels.state(node()) == ""
    assert not node_labels.can_pause(node())
    assert node_labels.patch(node(), None, "", pauses=False) == {}
    assert node_labels.patch(node(), "pending", "", pauses=True) == {"labels": {STATE: "pending"}}


def test_only_daemonsets_that_are_deployed_are_paused_and_come_back() -> None:
    labels = {PLUGIN: "true", DCGM: "false", STATE: "success"}
    assert node_labels.can_pause(node(labels))
    paused = node_labels.patch(node(labels), "pending", "", pauses=True)
    assert paused == {"labels": {PLUGIN: "paused-for-mig-change", STATE: "pending"}}
    back = node_labels.patch(node({**labels, **paused["labels"]}), "success", "", pauses=False)
    assert back == {"labels": {PLUGIN: "true", STATE: "success"}}


def test_the_label_of_the_agents_own_pod_is_spared() -> None:
    labels = {PLUGIN: "true", node_labels.OWN: "true"}
    paused = node_labels.patch(node(labels), None, "", pauses=True, spares_own=True)
    assert paused == {"labels": {PLUGIN: "paused-for-mig-change"}}
    assert node_labels.OWN in node_labels.patch(node(labels), None, "", pauses=True)["labels"]


def test_what_a_killed_manager_left_is_put_back_though_nothing_is_wanted() -> None:
    left = node({EXPORTER: "paused-for-mig-change"})
    assert node_labels.patch(left, None, "", pauses=False) == {"labels": {EXPORTER: "true"}}


def test_the_reason_is_an_annotation_that_goes_with_the_failure() -> None:
    labels = {STATE: "failed"}
    assert node_labels.patch(node(labels), "failed", "x" * 5000, pauses=False) == {
        "annotations": {REASON: "x" * 1024}
    }
    assert node_labels.patch(node(labels, "busy"), "failed", "busy", pauses=False) == {}
    assert node_labels.patch(node(labels, "busy"), "success", "", pauses=False) == {
        "labels": {STATE: "success"}, "annotations": {REASON: None},
    }  # fmt: skip


def test_uninstallation_leaves_nothing_of_it() -> None:
    assert node_labels.leaving(node({PLUGIN: "true", node_labels.CONFIG: "mine"})) == {}
    assert node_labels.leaving(node({PLUGIN: "paused-for-mig-change", STATE: "failed"}, "busy")) == {
        "labels": {PLUGIN: "true", STATE: None}, "annotations": {REASON: None},
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", "all-1g.10gb"])
def test_the_name_is_that_of_the_label(name: str) -> None:
    assert node_labels.wanted(node({node_labels.CONFIG: name})) == name
