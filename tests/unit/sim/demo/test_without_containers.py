# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct_sim.demo.without_containers: changes to a config.json, and their check."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nvct.host.model import DeviceNode, DriverFile, Gpu, Inventory, Link, MigDevice
from nvct_sim import bundle
from nvct_sim.demo.cases import Case
from nvct_sim.demo.without_containers import Changes, difference, expected_nodes, judge, parts

FILE = DriverFile(
    host_path="/driver/usr/lib/libcuda.so.580", container_path="/usr/lib/libcuda.so.580",
    reason="", kind="library",
)  # fmt: skip


def char(path: str, major: int, minor: int) -> DeviceNode:
    return DeviceNode(
        path=path, host_path=f"/node{path}", major=major, minor=minor, mode=0o666, uid=0, gid=0,
        reason="",
    )  # fmt: skip


def gpu(index: int, **more: Any) -> Gpu:
    minor = 7 - index  # a minor is not the index
    return Gpu(
        index=index, minor=minor, uuid=f"GPU-{index}", bus_id="", model="T4",
        node=char(f"/dev/nvidia{minor}", 195, minor), **more,
    )  # fmt: skip


CAPS = (char("/dev/nvidia-caps/nvidia-cap3", 236, 3), char("/dev/nvidia-caps/nvidia-cap4", 236, 4))
INVENTORY = Inventory(
    driver_version="580",
    gpus=(
        gpu(
            0,
            drm_nodes=(char("/dev/dri/card1", 226, 1),),
            by_path=(Link(target="../card1", path="/dev/dri/by-path/pci-0-card"),),
        ),
        gpu(
            1,
            mig_enabled=True,
            mig=(MigDevice(index=0, uuid="MIG-0", gi=1, ci=0, cap_minors=(3, 4), nodes=CAPS),),
        ),
    ),
    control_nodes=(char("/dev/nvidiactl", 195, 255),),
    files=(FILE,),
)
WHOLE = ("/dev/nvidiactl", "/dev/nvidia7", "/dev/dri/card1", "/dev/dri/by-path/pci-0-card")
ASKS = Case(title="", request="", expected=["GPU-0"])
NOTHING = Case(title="", request="", expected=None)
TYPO = Case(title="", request="", expected=None, error="gpu0")
RIGHT = Changes(
    changed=True,
    nodes=WHOLE,
    ruled=frozenset(WHOLE),
    mounts=((FILE.host_path, FILE.container_path),),
    hooks=(("/hook", "hook apply"),),
)


def test_a_whole_gpu_brings_its_nodes_and_the_control_nodes() -> None:
    assert expected_nodes(ASKS, INVENTORY) == set(WHOLE)


def test_a_mig_device_brings_its_parent_and_its_capabilities() -> None:
    asks = Case(title="", request="", expected=["MIG-0"])
    assert expected_nodes(asks, INVENTORY) == {
        "/dev/nvidiactl", "/dev/nvidia6", *(node.path for node in CAPS)
    }  # fmt: skip


def test_no_request_brings_no_node() -> None:
    assert expected_nodes(NOTHING, INVENTORY) == set()


def test_exactly_the_requested_devices_are_right() -> None:
    assert judge(ASKS, RIGHT, INVENTORY)
    assert judge(ASKS, replace(RIGHT, hooks=(), links=3), INVENTORY)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": WHOLE[:-1]},
        {"nodes": (*WHOLE, "/dev/nvidia6")},
        {"nodes": (*WHOLE, WHOLE[0])},
        {"ruled": frozenset(WHOLE[1:])},
        {"mounts": ()},
        {"mounts": ((FILE.host_path, "/elsewhere"),)},
        {"hooks": ()},
        {"status": 1},
        {"error": "a warning"},
    ],
)
def test_a_missing_or_additional_entry_is_wrong(change: dict[str, Any]) -> None:
    assert not judge(ASKS, replace(RIGHT, **change), INVENTORY)


def test_without_a_request_config_json_must_stay_as_it_is() -> None:
    assert judge(NOTHING, Changes(), INVENTORY)
    assert not judge(NOTHING, Changes(changed=True), INVENTORY)


def test_a_typo_must_fail_with_one_line_and_change_nothing() -> None:
    failed = Changes(status=1, error="'gpu0' names no device")
    assert judge(TYPO, failed, INVENTORY)
    assert not judge(TYPO, replace(failed, status=0), INVENTORY)
    assert not judge(TYPO, replace(failed, changed=True), INVENTORY)
    assert not judge(TYPO, replace(failed, error="'gpu0'\nmore"), INVENTORY)
    assert not judge(TYPO, replace(failed, error="something else"), INVENTORY)


def document(**more: Any) -> bytes:
    document = bundle.config(["/bin/true"], env=["A=1"])
    document["linux"]["devices"] = more.get("nodes", [])
    document["linux"]["resources"]["devices"] += more.get("rules", [])
    document["mounts"] += more.get("mounts", [])
    document["process"]["env"] += more.get("env", [])
    if "hooks" in more:
        document["hooks"] = more["hooks"]
    return json.dumps(document).encode()


def test_the_difference_is_what_was_added() -> None:
    number = {"type": "c", "major": 195, "minor": 7}
    hook = {"path": "/bin/hook", "args": ["hook", "apply", "--link", "a::b"], "env": ["X=1"]}
    got = difference(
        document(),
        document(
            nodes=[{"path": "/dev/nvidia7", **number}],
            rules=[{"allow": True, **number, "access": "rwm"}],
            mounts=[{"source": "/a", "destination": "/b"}],
            env=["B=2"],
            hooks={"createContainer": [hook]},
        ),
    )
    assert got == Changes(
        changed=True,
        nodes=("/dev/nvidia7",),
        ruled=frozenset({"/dev/nvidia7"}),
        mounts=(("/a", "/b"),),
        hooks=(("/bin/hook", "hook apply"),),
        env=("B=2",),
    )


def test_a_node_whose_rule_forbids_it_is_not_ruled() -> None:
    number = {"type": "c", "major": 195, "minor": 7}
    nodes = [{"path": "/dev/nvidia7", **number}]
    rules = [{"allow": False, **number, "access": "rwm"}]
    got = difference(document(), document(nodes=nodes, rules=rules))
    assert got.nodes == ("/dev/nvidia7",)
    assert got.ruled == frozenset()


def test_an_unchanged_document_has_no_difference() -> None:
    assert difference(document(), document()) == Changes()


def test_parts_list_the_additions_of_a_container() -> None:
    shown = parts(RIGHT, INVENTORY)
    assert shown["nodes"] == "nvidia7, 1 in dri/by-path/, dri/card1; nvidiactl"
    assert shown["mounts"] == "1 file of the driver, such as /usr/lib/libcuda.so.580"
    assert shown["hooks"] == "hook apply"


def test_parts_of_a_failure_are_its_message() -> None:
    assert parts(Changes(status=1, error="no such GPU"), INVENTORY) == {"": "no such GPU"}


def test_parts_without_changes_are_nothing() -> None:
    assert "nothing" in parts(Changes(), INVENTORY)[""]
