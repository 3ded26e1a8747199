# SPDX-License-Identifier: Apache-2.0
"""The recordings of NVIDIA's programs are complete, and match the current simulated nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct_sim import profile, tree
from tests.peer import cases, mig, shipped
from tests.peer.__main__ import DRA_DRIVER_FACTS, OPERATOR_FACTS, RECORDED, VERSIONS


def plugin_answers(node: str, case: str) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(
        (RECORDED / node / f"device-plugin/{case}.json").read_text(encoding="utf-8")
    )
    return answers


def names(folder: Path) -> set[str]:
    return {path.name.partition(".cdi-")[0].rsplit(".", 1)[0] for path in folder.iterdir()}


def test_versions_name_the_three_programs() -> None:
    lines = (RECORDED / VERSIONS).read_text(encoding="utf-8").splitlines()

    assert [line.split()[0].rstrip(":") for line in lines] == [
        "recorded", "nvidia-device-plugin", "gpu-feature-discovery", "nvidia-mig-parted",
    ]  # fmt: skip
    assert all("version v" in line and "commit: " in line for line in lines[1:])


def test_nothing_is_recorded_of_other_nodes() -> None:
    by_hand = {OPERATOR_FACTS.name, DRA_DRIVER_FACTS.name}
    folders = {path.name for path in RECORDED.iterdir()} - {VERSIONS, *by_hand}

    assert folders == {*cases.NODES, *cases.IN_PODS}


@pytest.mark.parametrize("node", cases.NODES)
def test_every_case_of_a_node_is_recorded(node: str) -> None:
    assert names(RECORDED / node / "device-plugin") == {
        name if "." not in name else name.rsplit(".", 1)[0] for name in cases.plugin(node)
    }
    assert names(RECORDED / node / "gpu-feature-discovery") == set(cases.gfd(node))
    configs = yaml.safe_load(mig.CONFIGS.read_text(encoding="utf-8"))["mig-configs"]
    transcripts = RECORDED / node / "mig-parted"
    wanted = set() if cases.NODES[node].mig else {"state", "restore", *configs}
    wanted |= {"shipped"} if node == shipped.NODE else set()
    assert (names(transcripts) if transcripts.is_dir() else set()) == wanted


@pytest.mark.parametrize("node", cases.IN_PODS)
def test_every_case_of_a_cluster_is_recorded(node: str) -> None:
    wanted = {"gpu-feature-discovery", *cases.IN_PODS[node].starts}

    assert names(RECORDED / node) == wanted
    for name in cases.IN_PODS[node].starts:
        answers = json.loads((RECORDED / node / f"{name}.json").read_text(encoding="utf-8"))
        assert set(answers["allocatable"]) == set(cases.IN_PODS[node].resources)
        for asked in answers["pods"].values():
            assert asked["phase"] == "Succeeded"


@pytest.mark.parametrize("node", [name for name, node in cases.NODES.items() if not node.mig])
def test_the_devices_are_those_of_the_simulated_node(node: str) -> None:
    gpus = len(profile.load(cases.NODES[node].profile).gpus)

    devices = plugin_answers(node, "envvar")["resources"]["nvidia.com/gpu"]["devices"]

    uuids = sorted(tree.gpu_uuid(node, index) for index in range(gpus))
    assert [device["ID"] for device in devices] == uuids


@pytest.mark.parametrize(
    ("cluster", "beside"),
    [
        ("a100-80-in-pods", "a100-80/gpu-feature-discovery/none.labels"),
        ("h100-mig-in-pods", "h100-mig/gpu-feature-discovery/none.labels"),
    ],
)
def test_a_pod_has_the_labels_that_a_process_beside_it_has(cluster: str, beside: str) -> None:
    in_pod = RECORDED / cluster / "gpu-feature-discovery.labels"

    assert in_pod.read_bytes() == (RECORDED / beside).read_bytes()
