# SPDX-License-Identifier: Apache-2.0
"""Which version of CDI a spec needs."""

from typing import Any, cast

import pytest

from nvct.cdi import versions
from nvct.cdi.types import Spec

PLAIN: dict[str, Any] = {"env": ["A=1"]}


def spec(edits: dict[str, Any], *, name: str = "a", kind: str = "vendor.com/device") -> Spec:
    return cast(
        "Spec",
        {
            "cdiVersion": "1.1.0",
            "kind": kind,
            "devices": [{"name": name, "containerEdits": edits}],
        },
    )


@pytest.mark.parametrize(
    ("edits", "version"),
    [
        (PLAIN, "0.3.0"),
        ({"deviceNodes": [{"path": "/dev/a", "permissions": "none"}]}, "0.3.0"),
        ({"mounts": [{"hostPath": "/a", "containerPath": "/a"}]}, "0.3.0"),
        ({"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": ""}]}, "0.3.0"),
        ({"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}, "0.4.0"),
        ({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}, "0.5.0"),
        ({"additionalGids": [1]}, "0.7.0"),
        ({"env": ["A=1"], "additionalGids": []}, "0.3.0"),
        ({"intelRdt": {}}, "0.7.0"),
        ({"intelRdt": {"enableMonitoring": False}}, "0.7.0"),
        ({"intelRdt": {"enableMonitoring": True}}, "1.1.0"),
        ({"intelRdt": {"schemata": []}}, "1.1.0"),
        ({"netDevices": [{"hostInterfaceName": "e", "name": "f"}]}, "1.1.0"),
        ({"env": ["A=1"], "netDevices": []}, "0.3.0"),
    ],
)
def test_edits_need_a_version_in_a_device_as_well_as_in_common(
    edits: dict[str, Any], version: str
) -> None:
    in_device = spec(edits)
    in_common = spec(PLAIN)
    in_common["containerEdits"] = in_device["devices"][0]["containerEdits"]

    assert versions.minimum_version(in_device) == version
    assert versions.minimum_version(in_common) == version


@pytest.mark.parametrize(
    ("name", "version"), [("0", "0.5.0"), ("0:1", "0.5.0"), ("a0", "0.3.0"), ("GPU-0", "0.3.0")]
)
def test_a_name_that_begins_with_a_digit_needs_0_5(name: str, version: str) -> None:
    assert versions.minimum_version(spec(PLAIN, name=name)) == version


def test_a_dot_counts_in_the_class_only() -> None:
    assert versions.minimum_version(spec(PLAIN, kind="vendor.com/device")) == "0.3.0"
    assert versions.minimum_version(spec(PLAIN, kind="vendor.com/device.x")) == "0.6.0"


def test_annotations_need_0_6_where_there_are_some() -> None:
    of_spec, of_device, none = spec(PLAIN), spec(PLAIN), spec(PLAIN)
    of_spec["annotations"] = {"a": "b"}
    of_device["devices"][0]["annotations"] = {"a": "b"}
    none["annotations"] = {}

    assert versions.minimum_version(of_spec) == "0.6.0"
    assert versions.minimum_version(of_device) == "0.6.0"
    assert versions.minimum_version(none) == "0.3.0"


def test_the_highest_need_wins() -> None:
    both = spec({"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}, name="0")
    both["containerEdits"] = {"additionalGids": [44]}

    assert versions.minimum(both) == ("0.7.0", "additionalGids")


def test_versions_are_known_in_their_order() -> None:
    assert versions.is_known("1.0.0")
    assert versions.is_known("v0.5.0")
    assert not versions.is_known("0.9.0")
    assert not versions.is_known("")
    assert versions.is_older("0.8.0", "1.0.0")
    assert versions.is_older("v0.5.0", "0.6.0")
    assert not versions.is_older("0.5.0", "0.5.0")


def test_the_table_of_needs_is_latest_first_and_of_known_versions() -> None:
    indices = [versions.KNOWN.index(version) for version, _, _ in versions.NEEDS]

    assert indices == sorted(indices, reverse=True)
