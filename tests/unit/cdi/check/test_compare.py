# SPDX-License-Identifier: Apache-2.0
"""Two specs compared by what they do."""

import copy
from typing import Any

import pytest

from nvct.cdi.check import compare
from nvct.cdi.make.hooks import apply_hook
from nvct.cdi.make.provenance import DOMAIN
from nvct.container.plan.model import no_work

HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "apply", "--link", "a::/b", "--mask-params"],
    "env": ["A=b"],
}
NODE = {"path": "/dev/nvidia0", "fileMode": 438, "permissions": "rwm"}
MOUNT = {"hostPath": "/r/lib/l.so.1", "containerPath": "/lib/l.so.1", "options": ["ro", "rbind"]}


def spec(**common: Any) -> Any:
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [copy.deepcopy(NODE)]}},
            {"name": "1", "containerEdits": {"env": ["N=1"]}},
        ],
        "containerEdits": {
            "env": ["V=void"], "mounts": [MOUNT], "hooks": [HOOK], "additionalGids": [44], **common,
        },
    }  # fmt: skip


def test_order_version_origin_and_an_equal_host_path_are_no_difference() -> None:
    other = {**MOUNT, "containerPath": "/x"}
    first = spec(mounts=[MOUNT, other])
    second = spec(mounts=[other, MOUNT])
    second["cdiVersion"] = "1.0.0"
    second["annotations"] = {f"{DOMAIN}files": "{}"}
    second["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"] = "/dev/nvidia0"
    second["devices"] = list(reversed(second["devices"]))

    assert compare.differences(first, second) == []
    assert compare.differences(spec(), spec()) == []


# Common edits of the other spec -> sentences.
CASES: list[tuple[dict[str, Any], list[str]]] = [
    ({"env": ["V=all"]}, ["~ env V: void -> all"]),
    ({"env": ["V=void", "W="]}, ["+ env W="]),
    ({"env": []}, ["- env V=void"]),
    ({"mounts": []}, ["- mount /lib/l.so.1 (/r/lib/l.so.1)"]),
    (
        {"mounts": [{**MOUNT, "hostPath": "/s/l.so.1"}]},
        ["~ mount /lib/l.so.1: hostPath /r/lib/l.so.1 -> /s/l.so.1"],
    ),
    (
        {"mounts": [{**MOUNT, "options": ["rbind"]}]},
        ["~ mount /lib/l.so.1: options ro,rbind -> rbind"],
    ),
    (
        {"mounts": [MOUNT, {**MOUNT, "hostPath": "/again"}]},
        ["+ mount /lib/l.so.1 (number 2) (/again)"],
    ),
    ({"additionalGids": [44, 107]}, ["+ group 107"]),
    ({"additionalGids": []}, ["- group 44"]),
    ({"hooks": []}, ["- hook createContainer apply"]),
    (
        {"hooks": [{**HOOK, "path": "/opt/hook"}]},
        ["~ hook createContainer apply: path /usr/bin/nvidia-cdi-hook -> /opt/hook"],
    ),
    (
        {"hooks": [{k: v for k, v in HOOK.items() if k != "env"}]},
        ["~ hook createContainer apply: env A=b -> none"],
    ),
    (
        {"hooks": [{**HOOK, "args": [*HOOK["args"][:2], "--link", "c::/b", "--folder", "/l"]}]},
        [
            "~ hook createContainer apply: + --folder /l",
            "~ hook createContainer apply: + --link c::/b",
            "~ hook createContainer apply: - --link a::/b",
            "~ hook createContainer apply: - --mask-params",
        ],
    ),
    (
        {"hooks": [HOOK, {**HOOK, "args": ["nvidia-ctk", "hook", "chmod"]}]},
        ["+ hook createContainer chmod"],
    ),
    ({"hooks": [HOOK, {"hookName": "poststop", "path": "/x/y"}]}, ["+ hook poststop y"]),
    ({"netDevices": [{"hostInterfaceName": "ib0", "name": "n0"}]}, ["+ network interface ib0"]),
    ({"intelRdt": {"closID": "c"}}, ["+ intelRdt"]),
    ({"deviceNodes": [NODE]}, ["+ node /dev/nvidia0 (/dev/nvidia0)"]),
]


@pytest.mark.parametrize(("common", "lines"), CASES)
def test_each_difference_has_a_sentence(common: dict[str, Any], lines: list[str]) -> None:
    assert compare.differences(spec(), spec(**common)) == [("every container", lines)]


def test_differences_are_reported_by_device() -> None:
    old, new = spec(), spec()
    new["kind"] = "nvidia.com/other"
    new["annotations"] = {"a": "b"}
    del new["devices"][1]
    new["devices"].append({"name": "2", "containerEdits": {"env": ["A=b"]}})
    new["devices"][0]["containerEdits"]["deviceNodes"][0].update(
        fileMode=432, hostPath="/r/dev/nvidia0", major=195
    )

    assert compare.differences(old, new) == [
        ("the spec", ["+ annotation a=b", "~ kind: nvidia.com/gpu -> nvidia.com/other"]),
        (
            "device 0",
            [
                "~ node /dev/nvidia0: fileMode 0666 -> 0660",
                "~ node /dev/nvidia0: hostPath /dev/nvidia0 -> /r/dev/nvidia0",
                "~ node /dev/nvidia0: major none -> 195",
            ],
        ),
        ("device 1", ["- the device"]),
        ("device 2", ["+ the device"]),
    ]


def test_devices_with_the_same_differences_are_reported_once() -> None:
    old, new = spec(), spec()
    for made in (old, new):
        made["devices"].append({**made["devices"][0], "name": "GPU-1"})
    for device in (new["devices"][0], new["devices"][2]):
        device["containerEdits"] = {"env": ["A=b"]}

    assert compare.differences(old, new) == [
        ("device 0, GPU-1", ["+ env A=b", "- node /dev/nvidia0 (/dev/nvidia0)"])
    ]


# --- options_like ---


def like(names: list[str], **more: Any) -> Any:
    made = {
        "cdiVersion": "0.5.0",
        "kind": "acme.com/chip",
        "devices": [
            {"name": name, "containerEdits": {"deviceNodes": [dict(NODE)]}} for name in names
        ],
        **more,
    }
    return compare.options_like(made, hook_path="/h")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "strategies", "all_device"),
    [
        (["0", "0:1", "all"], ["index"], True),
        (["GPU-0a", "MIG-0b"], ["uuid"], False),
        (["gpu0", "mig0:1"], ["type-index"], False),
        (["0", "GPU-0a", "gpu0", "all"], ["index", "uuid", "type-index"], True),
        (["all"], ("index", "uuid"), True),
    ],
)
def test_live_specs_get_the_same_kinds_of_names(
    names: list[str], strategies: list[str], all_device: object
) -> None:
    options = like(names)

    assert options.device_name_strategies == strategies
    assert options.all_device is all_device
    assert (options.vendor, options.cls) == ("acme.com", "chip")


def test_live_specs_get_the_same_hook_program_or_none() -> None:
    apply = apply_hook("/opt/hook", {**no_work(), "folders": ["/l"]})

    with_hook = like(["0"], containerEdits={"hooks": apply})
    without = like(["0"])

    assert (with_hook.hook_path, with_hook.disabled_hooks) == ("/opt/hook", ())
    assert (without.hook_path, without.disabled_hooks) == ("/h", ("all",))


def test_live_specs_get_numbers_and_groups_where_the_other_has_them() -> None:
    plain = like(["0"])
    full = like(
        ["0"],
        containerEdits={
            "deviceNodes": [{"path": "/dev/a", "type": "c", "major": 1, "minor": 2}],
            "additionalGids": [44],
        },
    )

    assert (plain.node_numbers, plain.gid_groups) == (False, False)
    assert (full.node_numbers, full.gid_groups) == (True, True)
