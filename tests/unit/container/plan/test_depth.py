# SPDX-License-Identifier: Apache-2.0
"""Plans are parsed without a check of their depth: no CDI spec can make one deep."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nvct.oci.jsontext import DEPTH_LIMIT as LIMIT
from tests.support.shim_lab import Lab

PLAN_DEPTH = 10
"""As `nvct.oci.jsontext.parse_trusted` says."""
EVERYTHING = {
    "env": ["A=1"],
    "deviceNodes": [{"path": "/dev/null", "permissions": "rw"}],
    "mounts": [{"hostPath": "/", "containerPath": "/x", "options": ["ro"]}],
    "hooks": [{"hookName": "createContainer", "path": "/bin/true", "env": ["A=1"]}],
}


def depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


def nested(levels: int) -> Any:
    return json.loads('{"a":[' * (levels // 2) + "1" + "]}" * (levels // 2))


def plan_depths(lab: Lab) -> dict[str, int]:
    return {path.name: depth(lab.kept(path.name)) for path in lab.run_dir.glob("*.plan")}


def test_a_plan_of_the_driver_has_few_levels(lab: Lab) -> None:
    lab.driver(8)
    lab.asks("NVIDIA_VISIBLE_DEVICES=all")

    assert lab.create().status == 0
    assert max(plan_depths(lab).values()) < PLAN_DEPTH


@pytest.mark.parametrize("levels", [0, LIMIT - 10, LIMIT + 10])
@pytest.mark.parametrize("member", ["annotations", "args", "unknown"])
def test_a_plan_has_few_levels_with_any_spec(levels: int, member: str, lab: Lab) -> None:
    lab.configure(mode="cdi")
    lab.spec(devices={"0": EVERYTHING}, common=EVERYTHING)
    path = lab.spec("acme.json", kind="acme.com/gpu", devices={"0": EVERYTHING})
    spec = json.loads(path.read_text())
    if member == "args":
        spec["devices"][0]["containerEdits"]["hooks"][0]["args"] = nested(levels)
    else:
        spec[member] = nested(levels)
    path.write_text(json.dumps(spec), encoding="utf-8")
    lab.age(path)
    lab.asks(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=0"})

    assert lab.create().status == 0
    assert plan_depths(lab).keys() == {"registry.plan"}
    assert plan_depths(lab)["registry.plan"] < PLAN_DEPTH
