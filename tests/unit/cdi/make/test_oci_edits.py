# SPDX-License-Identifier: Apache-2.0
"""Container edits as parts of config.json, on this host's device nodes."""

import os
import stat
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.cdi.types import ContainerEdits
from nvct.errors import CdiSpecError, HostError, NvctError, StaleSpecError, line
from tests.support.cdi_engine import parsed

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
        with pytest.raises(CdiSpecError, match=f"{path} is no device node"):
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
