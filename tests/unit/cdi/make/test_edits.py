# SPDX-License-Identifier: Apache-2.0
"""Tidying edits and moving roots."""

import copy
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.cdi.make.edits import move_root, path_key, tidy
from nvct.cdi.types import ContainerEdits
from nvct.errors import CdiSpecError, HostError, NvctError, StaleSpecError, line
from tests.support.cdi_engine import parsed


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


# Container edits as parts of config.json, on this host's device nodes.


NULL_MODE = stat.S_IMODE(os.lstat("/dev/null").st_mode)


def compiled(document: dict[str, Any]) -> dict[str, Any]:
    return parsed(cast("ContainerEdits", document), "spec.yaml")


def node(**fields: object) -> dict[str, Any]:
    (oci_node,) = compiled({"deviceNodes": [fields]})["nodes"]
    return dict(oci_node)


def test_without_edits_there_is_nothing() -> None:
    assert compiled({}) == {
        "env": [], "nodes": [], "mounts": [], "hooks": {}, "gids": [], "net": {}, "rdt": {},
    }  # fmt: skip


NULL = {"path": "/dev/null", "type": "c", "major": 1, "minor": 3, "fileMode": NULL_MODE}
GONE = {"path": "/dev/nvidia77", "type": "c", "major": 195, "minor": 77}
NODES = {
    "filled in from the host": ({}, {}, "rwm"),
    "another path inside": (
        {"path": "/dev/inside", "hostPath": "/dev/null"}, {"path": "/dev/inside"}, "rwm",
    ),
    "no host path": ({"hostPath": ""}, {}, "rwm"),
    "all given": (
        {"major": 1, "minor": 3, "fileMode": 0o600, "permissions": "r", "uid": 0, "gid": 44},
        {"fileMode": 0o600, "uid": 0, "gid": 44}, "r",
    ),
    "a user": ({"uid": 0}, {"uid": 0}, "rwm"),
    "a group": ({"gid": 0}, {"gid": 0}, "rwm"),
    "an owner": ({"uid": 1, "gid": 2}, {"uid": 1, "gid": 2}, "rwm"),
    "complete, with the mode of the host": ({"type": "c", "major": 1, "minor": 5}, {"minor": 5}, "rwm"),
    "unbuffered": ({"type": "u"}, {"type": "u"}, ""),
    "no access": ({"permissions": "none"}, {}, ""),
    "access not given": ({"permissions": ""}, {}, "rwm"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "fields", "access"), NODES.values(), ids=NODES.keys())
def test_a_node_has_what_the_spec_says_and_the_rest_from_the_host(
    given: dict[str, object], fields: dict[str, object], access: str
) -> None:
    oci_node = node(**{"path": "/dev/null", **given})

    expected = {**NULL, **fields}
    numbers = {key: expected[key] for key in ("type", "major", "minor")}
    assert oci_node["host"] == "/dev/null"
    assert oci_node["node"] == expected
    assert oci_node["rule"] == ({"allow": True, **numbers, "access": access} if access else None)


def test_a_complete_node_may_be_missing() -> None:
    oci_node = node(**GONE)

    numbers = {key: GONE[key] for key in ("type", "major", "minor")}
    assert oci_node["node"] == GONE
    assert oci_node["rule"] == {"allow": True, **numbers, "access": "rwm"}


REMEDY = "regenerate the spec, for NVIDIA: nvidia-ctk cdi generate"
MISSING = f"device node /dev/nvidia77 is missing; {REMEDY} [host]"


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"path": "/dev/nvidia77"}, HostError, MISSING),
        ({"path": "/dev/nvidia77", "major": 195, "minor": 77}, HostError, MISSING),
        ({"path": "/dev/nvidia77", "type": "c", "minor": 77}, HostError, MISSING),
        ({"path": "/dev/null", "major": 508, "minor": 3}, StaleSpecError,
         f"/dev/null is device 1:3, the spec says 508:3; {REMEDY} [stale-spec]"),
        ({"path": "/dev/null", "major": 1}, StaleSpecError,
         f"/dev/null is device 1:3, the spec says 1:0; {REMEDY} [stale-spec]"),
    ],
    ids=["missing", "numbers without a type", "type without a number", "changed", "no minor number"],
)  # fmt: skip
def test_a_node_that_is_missing_or_another_one_is_named(
    given: dict[str, object], error: type[NvctError], said: str
) -> None:
    with pytest.raises(error) as caught:
        node(**given)

    assert line("nvct", caught.value) == f"nvct: spec.yaml: {said}"


def test_a_complete_node_takes_no_mode_from_something_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o640)

    assert "fileMode" not in node(path=str(file), type="c", major=1, minor=5)["node"]


def test_another_type_than_the_spec_says_is_an_error(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")  # that is not followed
    with pytest.raises(CdiSpecError, match="/dev/null is of type c, the spec says b"):
        node(path="/dev/null", type="b")
    for path in ("/etc/passwd", str(link)):
        with pytest.raises(CdiSpecError, match=f"{path} is not a device node"):
            node(path="/dev/null", hostPath=path)


def test_a_fifo_has_no_numbers_and_no_rule(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)

    for oci_node in (node(path="/run/f", hostPath=str(fifo)), node(path="/run/f", type="p")):
        assert oci_node["node"]["type"] == "p"
        assert "major" not in oci_node["node"]
        assert oci_node["rule"] is None


def test_mounts_keep_what_the_spec_says() -> None:
    document = {
        "mounts": [
            {"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"]},
            {"hostPath": "tmpfs", "containerPath": "/c", "type": "tmpfs"},
        ]
    }

    assert compiled(document)["mounts"] == [
        {"destination": "/b", "source": "/a", "options": ["ro", "bind"]},
        {"destination": "/c", "type": "tmpfs", "source": "tmpfs"},
    ]


def test_hooks_are_kept_in_order_at_their_points() -> None:
    document = {
        "hooks": [
            {"hookName": "createContainer", "path": "/h1", "args": ["h1", "x"], "env": ["A=1"]},
            {"hookName": "poststop", "path": "/h2", "timeout": 5},
            {"hookName": "createContainer", "path": "/h3", "args": [], "env": []},
        ]
    }

    assert compiled(document)["hooks"] == {
        "createContainer": [{"path": "/h1", "args": ["h1", "x"], "env": ["A=1"]}, {"path": "/h3"}],
        "poststop": [{"path": "/h2", "timeout": 5}],
    }


def test_groups_interfaces_env_and_rdt() -> None:
    document = {
        "env": ["A=1", "B="],
        "additionalGids": [44, 0, 105, 44],
        "netDevices": [{"hostInterfaceName": "enp1s0", "name": "eth1"}],
        "intelRdt": {"closID": "x", "enableMonitoring": True},
    }

    edits = compiled(document)

    assert edits["env"] == ["A=1", "B="]
    assert edits["gids"] == [44, 105]
    assert edits["net"] == {"enp1s0": {"name": "eth1"}}
    assert edits["rdt"] == {"closID": "x", "enableMonitoring": True}
