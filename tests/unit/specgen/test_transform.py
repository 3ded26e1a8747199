# SPDX-License-Identifier: Apache-2.0
"""Tidying edits and moving roots."""

from __future__ import annotations

import pytest

from nvct.specgen.transform import move_host_root, path_key, tidy


def test_doubles_go_and_paths_are_sorted_by_depth_then_bytes() -> None:
    nodes = [{"path": p} for p in ("/dev/a/b", "/dev/nvidia9", "/dev/nvidia10", "/dev/nvidia9")]

    assert tidy({"deviceNodes": nodes}, {}) == {
        "deviceNodes": [{"path": "/dev/nvidia10"}, {"path": "/dev/nvidia9"}, {"path": "/dev/a/b"}]
    }


def test_hooks_and_environment_keep_their_order() -> None:
    edits = {"env": ["B=1", "A=1"], "hooks": [{"args": ["2"]}, {"args": ["1"]}]}

    assert tidy(edits, {}) == edits


def test_common_entries_are_dropped_unless_nothing_would_be_left() -> None:
    common = {"env": ["A=1"]}

    assert tidy({"env": ["A=1", "B=1"]}, common) == {"env": ["B=1"]}
    assert tidy({"env": ["A=1"]}, common) == {"env": ["A=1"]}


def test_arguments_are_left_as_they_were() -> None:
    edits = {"deviceNodes": [{"path": "/b"}, {"path": "/a"}]}

    tidy(edits, {})

    assert edits == {"deviceNodes": [{"path": "/b"}, {"path": "/a"}]}


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
            "hooks": [{"path": path, "args": [path]}],
        },
    }

    moved = move_host_root(spec, source, "/target")

    assert moved["containerEdits"] == {
        "mounts": [{"hostPath": expected, "containerPath": path}],
        "hooks": [{"path": expected, "args": [path]}],
    }
    node = moved["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node.get("hostPath", node["path"]) == expected
    assert node["path"] == path
