# SPDX-License-Identifier: Apache-2.0
"""Tidying edits and moving roots."""

import copy
from collections.abc import Callable
from functools import partial

import pytest

from nvct.cdi.make.edits import move_root, path_key, tidy


def test_doubles_go_and_paths_are_sorted_by_depth_then_bytes() -> None:
    nodes = [{"path": p} for p in ("/dev/a/b", "/dev/nvidia9", "/dev/nvidia10", "/dev/nvidia9")]

    assert tidy({"deviceNodes": nodes}, {}) == {
        "deviceNodes": [{"path": "/dev/nvidia10"}, {"path": "/dev/nvidia9"}, {"path": "/dev/a/b"}]
    }


def test_hooks_and_environment_keep_their_order_and_arguments_are_left() -> None:
    edits = {"env": ["B=1", "A=1"], "hooks": [{"args": ["2"]}, {"args": ["1"]}]}
    nodes = {"deviceNodes": [{"path": "/b"}, {"path": "/a"}]}

    assert tidy(edits, {}) == edits
    tidy(nodes, {})
    assert nodes == {"deviceNodes": [{"path": "/b"}, {"path": "/a"}]}


def test_common_entries_are_dropped_unless_nothing_would_be_left() -> None:
    common = {"env": ["A=1"]}

    assert tidy({"env": ["A=1", "B=1"]}, common) == {"env": ["B=1"]}
    assert tidy({"env": ["A=1"]}, common) == {"env": ["A=1"]}


def test_key_counts_components_not_slashes() -> None:
    assert path_key("/a//b/") < path_key("/a/b/c")
    assert path_key("/a//b/")[0] == path_key("/a/b")[0]


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        ("/driver", "/driver/usr/x", "/target/usr/x"),
        ("/driver/", "/driver", "/target"),
        ("/driver", "/driver-root/usr/x", "/driver-root/usr/x"),
        ("/", "/usr/x", "/target/usr/x"),
    ],
)
def test_host_root_ends_at_a_component(source: str, path: str, expected: str) -> None:
    spec = {
        "kind": "a.b/c",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": path}]}}],
        "containerEdits": {
            "mounts": [{"hostPath": path, "containerPath": path}],
            "hooks": [{"hookName": "createContainer", "path": path, "args": [path]}],
        },
    }

    moved = move_root(spec, source, "/target")

    assert moved["containerEdits"] == {
        "mounts": [{"hostPath": expected, "containerPath": path}],
        "hooks": [{"hookName": "createContainer", "path": expected, "args": [path]}],
    }
    node = moved["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node.get("hostPath", node["path"]) == expected
    assert node["path"] == path


HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
ARGS = ["hook", "/in/x", "--folder=/in/x", "/in/t::/in/l", "t::/in/l", "/in/a::b::/in/c", "in"]
MOVED_ARGS = ["hook", "/out/x", "--folder=/in/x", "/out/t::/out/l", "t::/out/l", "/out/a::b::/in/c", "in"]  # fmt: skip


def spec_with(**edits: object) -> dict[str, object]:
    return {
        "cdiVersion": "0.3.0",
        "kind": "a.b/c",
        "devices": [{"name": "x", "containerEdits": edits}],
        "containerEdits": copy.deepcopy(edits),
    }


def edits_of(spec: dict[str, object]) -> list[dict[str, object]]:
    devices = spec["devices"]
    assert isinstance(devices, list)
    common = spec["containerEdits"]
    assert isinstance(common, dict)
    return [common, *(device["containerEdits"] for device in devices)]


@pytest.mark.parametrize("in_container", [False, True])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_its_program_and_arguments_where_it_runs(
    name: str, *, in_container: bool
) -> None:
    hook = {"hookName": name, "path": "/in/p", "args": ARGS, "env": ["A=/in"]}
    starts_inside = name == "startContainer"
    sees_the_container = name in {"createContainer", "startContainer"}

    moved = move_root(spec_with(hooks=[hook]), "/in", "/out", in_container=in_container)

    for edits in edits_of(moved):
        assert edits["hooks"] == [
            {
                "hookName": name,
                "path": "/out/p" if starts_inside is in_container else "/in/p",
                "args": MOVED_ARGS if sees_the_container is in_container else ARGS,
                "env": ["A=/in"],
            }
        ]


def test_a_hook_without_arguments_and_a_spec_without_common_edits_get_none() -> None:
    spec = spec_with(hooks=[{"hookName": "prestart", "path": "/in/p"}])

    moved = edits_of(move_root(spec, "/in", "/out"))

    assert moved[0]["hooks"] == [{"hookName": "prestart", "path": "/out/p"}]
    del spec["containerEdits"]
    assert "containerEdits" not in move_root(spec, "/in", "/out")


def test_the_container_root_moves_nothing_of_the_host() -> None:
    nodes = [
        {"path": "/in/n", "major": 1},
        {"path": "/in/n", "hostPath": "/in/h"},
        {"path": "/other", "hostPath": "/in/h"},
        {"path": "/in/n", "hostPath": "/out/n"},
    ]
    mounts = [{"hostPath": "/in/m", "containerPath": "/in/m", "options": ["ro"]}]

    for edits in edits_of(
        move_root(spec_with(deviceNodes=nodes, mounts=mounts), "/in", "/out", in_container=True)
    ):
        assert edits["deviceNodes"] == [
            {"path": "/out/n", "hostPath": "/in/n", "major": 1},
            {"path": "/out/n", "hostPath": "/in/h"},
            {"path": "/other", "hostPath": "/in/h"},
            {"path": "/out/n"},
        ]
        assert edits["mounts"] == [
            {"hostPath": "/in/m", "containerPath": "/out/m", "options": ["ro"]}
        ]


@pytest.mark.parametrize("source", ["", "/"])
@pytest.mark.parametrize(("target", "expected"), [("/t", "/t/x"), ("", "/x"), ("/", "/x")])
def test_an_empty_root_is_the_root_directory(source: str, target: str, expected: str) -> None:
    mounts = [{"hostPath": "/x", "containerPath": "/x"}]

    moved = move_root(spec_with(mounts=mounts), source, target)

    assert edits_of(moved)[0]["mounts"] == [{"hostPath": expected, "containerPath": "/x"}]


@pytest.mark.parametrize("move", [move_root, partial(move_root, in_container=True)])
def test_moving_changes_neither_the_argument_nor_unknown_fields(
    move: Callable[[dict[str, object], str, str], dict[str, object]],
) -> None:
    spec = spec_with(
        env=["A=/in"],
        deviceNodes=[{"path": "/in/n", "permissions": "r"}],
        netDevices=[{"hostInterfaceName": "in", "name": "in"}],
        additionalGids=[4],
    )
    before = copy.deepcopy(spec)

    moved = move({**spec, "annotations": {"a": "/in"}}, "/in", "/out")

    assert spec == before
    assert moved["annotations"] == {"a": "/in"}
    for edits in edits_of(moved):
        assert edits["env"] == ["A=/in"]
        assert edits["netDevices"] == [{"hostInterfaceName": "in", "name": "in"}]
        assert edits["additionalGids"] == [4]


def test_edits_that_two_devices_share_move_once() -> None:
    edits = {
        "deviceNodes": [{"path": "/dev/a"}],
        "hooks": [{"hookName": "poststop", "path": "/h"}],
    }
    devices = [{"name": name, "containerEdits": edits} for name in ("0", "GPU-0")]

    moved = move_root({"kind": "a.b/c", "devices": devices}, "/", "/host")

    for device in moved["devices"]:
        assert device["containerEdits"] == {
            "deviceNodes": [{"path": "/dev/a", "hostPath": "/host/dev/a"}],
            "hooks": [{"hookName": "poststop", "path": "/host/h"}],
        }
