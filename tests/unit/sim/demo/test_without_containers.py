# SPDX-License-Identifier: Apache-2.0
"""Unit tests for nvct.sim.demo.without_containers: what a create did to a config.json, and whether it is right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nvct.host.model import DeviceNode, DriverFile, Gpu, Inventory, Link, MigDevice
from nvct.sim import bundle
from nvct.sim.demo.cases import Case
from nvct.sim.demo.without_containers import Got, difference, expected_nodes, judge, parts

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
RIGHT = Got(
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


def test_exactly_what_was_asked_for_is_right() -> None:
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
def test_one_thing_missing_or_too_much_is_wrong(change: dict[str, Any]) -> None:
    assert not judge(ASKS, replace(RIGHT, **change), INVENTORY)


def test_without_a_request_config_json_must_stay_as_it_is() -> None:
    assert judge(NOTHING, Got(), INVENTORY)
    assert not judge(NOTHING, Got(changed=True), INVENTORY)


def test_a_typo_must_fail_with_one_line_and_change_nothing() -> None:
    failed = Got(status=1, error="'gpu0' names no device")
    assert judge(TYPO, failed, INVENTORY)
    assert not judge(TYPO, replace(failed, status=0), INVENTORY)
    assert not judge(TYPO, replace(failed, changed=True), INVENTORY)
    assert not judge(TYPO, replace(failed, error="'gpu0'\nmore"), INVENTORY)
    assert not judge(TYPO, replace(failed, error="something else"), INVENTORY)


def document(**more: Any) -> bytes:
    made = bundle.config(["/bin/true"], env=["A=1"])
    made["linux"]["devices"] = more.get("nodes", [])
    made["linux"]["resources"]["devices"] += more.get("rules", [])
    made["mounts"] += more.get("mounts", [])
    made["process"]["env"] += more.get("env", [])
    if "hooks" in more:
        made["hooks"] = more["hooks"]
    return json.dumps(made).encode()


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
    assert got == Got(
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
    assert difference(document(), document()) == Got()


def test_parts_tell_what_a_container_would_get() -> None:
    told = parts(RIGHT, INVENTORY)
    assert told["nodes"] == "nvidia7, 1 in dri/by-path/, dri/card1; nvidiactl"
    assert told["mounts"] == "1 file of the driver, such as /usr/lib/libcuda.so.580"
    assert told["hooks"] == "hook apply"


def test_parts_of_a_failure_are_its_line() -> None:
    assert parts(Got(status=1, error="no such GPU"), INVENTORY) == {"": "no such GPU"}


def test_parts_of_no_change_say_so() -> None:
    assert "nothing" in parts(Got(), INVENTORY)[""]
