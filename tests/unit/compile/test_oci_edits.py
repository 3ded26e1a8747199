# SPDX-License-Identifier: Apache-2.0
"""Container edits as parts of config.json, on this host's device nodes."""

from __future__ import annotations

import copy
import os
import stat
from typing import Any, cast

import pytest

from nvct.compile import oci_edits as edits
from nvct.errors import CdiSpecError, HostError, StaleSpecError, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from nvct.cdi.types import ContainerEdits
    from nvct.compile.oci_edits import Edit, OciNode

NULL_MODE = stat.S_IMODE(os.lstat("/dev/null").st_mode)


def compiled(document: dict[str, Any]) -> Edit:
    return edits.oci_edits(cast("ContainerEdits", document), source="spec.yaml")


def node(**fields: object) -> OciNode:
    (oci_node,) = compiled({"deviceNodes": [fields]})["nodes"]
    return oci_node


def test_without_edits_there_is_nothing() -> None:
    assert compiled({}) == {
        "env": [], "nodes": [], "mounts": [], "hooks": {}, "gids": [], "net": {}, "rdt": {},
    }  # fmt: skip


def test_a_node_is_filled_in_from_the_host() -> None:
    assert node(path="/dev/inside", hostPath="/dev/null") == {
        "path": "/dev/inside",
        "host": "/dev/null",
        "node": {
            "path": "/dev/inside",
            "type": "c",
            "major": 1,
            "minor": 3,
            "fileMode": NULL_MODE,
        },
        "rule": {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"},
    }


def test_the_path_inside_is_the_one_on_the_host_if_no_other_is_given() -> None:
    assert node(path="/dev/zero")["host"] == "/dev/zero"
    assert node(path="/dev/zero", hostPath="")["node"]["minor"] == 5


def test_what_the_spec_gives_is_taken() -> None:
    oci_node = node(
        path="/dev/null", major=1, minor=3, fileMode=0o600, permissions="r", uid=0, gid=44
    )

    assert oci_node["node"] == {
        "path": "/dev/null",
        "type": "c",
        "major": 1,
        "minor": 3,
        "fileMode": 0o600,
        "uid": 0,
        "gid": 44,
    }
    assert oci_node["rule"] == {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "r"}


@pytest.mark.parametrize("given", [{}, {"uid": 0}, {"gid": 0}, {"uid": 1, "gid": 2}])
def test_the_owner_is_the_one_that_the_spec_gives(given: dict[str, int]) -> None:
    oci_node = node(path="/dev/null", **given)

    assert {
        key: oci_node["node"][key] for key in ("uid", "gid") if key in oci_node["node"]
    } == given


def test_a_missing_node_is_named() -> None:
    with pytest.raises(HostError) as caught:
        node(path="/dev/nvidia77")

    assert line("nvct", caught.value) == (
        "nvct: spec.yaml: device node /dev/nvidia77 is missing; "
        "regenerate the spec, for NVIDIA: nvidia-ctk cdi generate [host]"
    )


def test_a_major_number_alone_does_not_excuse_a_missing_node() -> None:
    with pytest.raises(HostError, match="/dev/nvidia77"):
        node(path="/dev/nvidia77", major=195, minor=77)


def test_a_complete_node_may_be_missing() -> None:
    oci_node = node(path="/dev/nvidia77", type="c", major=195, minor=77)

    assert oci_node["node"] == {"path": "/dev/nvidia77", "type": "c", "major": 195, "minor": 77}
    assert oci_node["rule"] == {
        "allow": True, "type": "c", "major": 195, "minor": 77, "access": "rwm",
    }  # fmt: skip


def test_a_type_without_a_number_is_not_complete() -> None:
    with pytest.raises(HostError, match="/dev/nvidia77"):
        node(path="/dev/nvidia77", type="c", minor=77)


def test_a_complete_node_takes_only_the_mode_from_the_host() -> None:
    oci_node = node(path="/dev/null", type="c", major=1, minor=5)

    assert oci_node["node"]["minor"] == 5
    assert oci_node["node"]["fileMode"] == NULL_MODE


def test_a_complete_node_takes_no_mode_from_something_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(0o640)

    assert "fileMode" not in node(path=str(file), type="c", major=1, minor=5)["node"]


def test_another_type_than_the_spec_says_is_an_error() -> None:
    with pytest.raises(CdiSpecError, match="/dev/null is of type c, the spec says b"):
        node(path="/dev/null", type="b")
    with pytest.raises(CdiSpecError, match="/etc/passwd is no device node"):
        node(path="/dev/null", hostPath="/etc/passwd")


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")

    with pytest.raises(CdiSpecError, match=f"{link} is no device node"):
        node(path="/dev/null", hostPath=str(link))


def test_a_host_that_changed_is_stale() -> None:
    with pytest.raises(StaleSpecError) as caught:
        node(path="/dev/null", major=508, minor=3)

    assert line("nvct", caught.value) == (
        "nvct: spec.yaml: /dev/null is device 1:3, the spec says 508:3; "
        "regenerate the spec, for NVIDIA: nvidia-ctk cdi generate [stale-spec]"
    )


def test_a_minor_number_left_out_is_zero() -> None:
    with pytest.raises(StaleSpecError, match="the spec says 1:0"):
        node(path="/dev/null", major=1)


def test_a_fifo_has_no_numbers_and_no_rule(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)

    for oci_node in (node(path="/run/f", hostPath=str(fifo)), node(path="/run/f", type="p")):
        assert oci_node["node"]["type"] == "p"
        assert "major" not in oci_node["node"]
        assert oci_node["rule"] is None


def test_an_unbuffered_device_is_a_character_device_without_a_rule() -> None:
    oci_node = node(path="/dev/null", type="u")

    assert oci_node["node"]["type"] == "u"
    assert (oci_node["node"]["major"], oci_node["node"]["minor"]) == (1, 3)
    assert oci_node["rule"] is None


def test_no_access_is_no_rule() -> None:
    assert node(path="/dev/null", permissions="none")["rule"] is None
    assert node(path="/dev/null", permissions="")["rule"] == {
        "allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm",
    }  # fmt: skip


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


def test_the_spec_is_left_as_it_is() -> None:
    document: dict[str, Any] = {
        "env": ["A=1"],
        "deviceNodes": [{"path": "/dev/null"}],
        "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro"]}],
        "hooks": [{"hookName": "prestart", "path": "/h", "args": ["h"]}],
    }
    before = copy.deepcopy(document)

    edits = compiled(document)
    edits["env"].append("B=2")
    edits["mounts"][0]["options"].append("rw")
    edits["hooks"]["prestart"][0]["args"].append("x")

    assert document == before
