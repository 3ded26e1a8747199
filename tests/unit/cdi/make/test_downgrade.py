# SPDX-License-Identifier: Apache-2.0
"""Specs for old engines."""

import copy
from typing import Any

import pytest

from nvct.cdi import versions
from nvct.cdi.make import downgrade, store
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError, UsageError


def spec(**more: Any) -> Spec:
    document: Any = {
        "cdiVersion": "1.1.0",
        "kind": "acme.com/chip",
        "devices": [{"name": "x", "containerEdits": {"env": ["A=b"]}}],
        "containerEdits": {"env": ["C=d"]},
        **more,
    }
    document["cdiVersion"] = versions.minimum_version(document)
    return document  # type: ignore[no-any-return]


def device(name: str = "x", **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"env": ["A=b"], **edits}}


BIND = {"hostPath": "/a", "containerPath": "/a", "options": ["ro", "rbind"], "type": "bind"}

GROUPS = (
    "containers do not get the groups 7, 44, 107: "
    "users that are not root may be refused the nodes of these groups"
)

# What a spec has -> the maximum -> what it needs then, what is lost.
CASES: list[tuple[dict[str, Any], str, str, list[str]]] = [
    ({}, "0.3.0", "0.3.0", []),
    (
        {"containerEdits": {"additionalGids": [44, 7]}, "devices": [device(additionalGids=[107])]},
        "0.6.0",
        "0.3.0",
        [GROUPS],
    ),
    ({"containerEdits": {"additionalGids": [44]}}, "0.7.0", "0.7.0", []),
    ({"annotations": {"a": "b"}}, "0.5.0", "0.3.0", ["annotations are left out"]),
    (
        {"devices": [{**device("0"), "annotations": {"a": "b"}}]},
        "0.5.0",
        "0.5.0",
        ["annotations are left out"],
    ),
    (
        {"annotations": {"a": "b"}, "devices": [{**device(), "annotations": {"a": "b"}}]},
        "0.5.0",
        "0.3.0",
        ["annotations are left out"],
    ),
    ({"annotations": {"a": "b"}}, "0.6.0", "0.6.0", []),
    ({"devices": [device(deviceNodes=[{"path": "/a", "hostPath": "/a"}])]}, "0.4.0", "0.3.0", []),
    ({"containerEdits": {"mounts": [BIND]}}, "0.3.0", "0.3.0", []),
    ({"containerEdits": {"mounts": [BIND]}}, "v0.4.0", "0.4.0", []),
]


@pytest.mark.parametrize(("more", "maximum", "needed", "lost"), CASES)
def test_what_is_not_necessary_is_left_out_and_each_loss_is_reported(
    more: dict[str, Any], maximum: str, needed: str, lost: list[str]
) -> None:
    document = spec(**more)
    before = copy.deepcopy(document)

    lowered, losses = downgrade.lower(document, maximum)

    assert document == before
    assert losses == lost
    assert lowered["cdiVersion"] == versions.minimum_version(lowered) == needed
    assert not versions.is_older(maximum, needed)
    assert validate(lowered, source="x")
    assert store.dumps(lowered)


def test_only_what_is_too_new_is_left_out() -> None:
    document = spec(annotations={"a": "b"}, containerEdits={"additionalGids": [1], "env": ["C=d"]})

    lowered, _lost = downgrade.lower(document, "0.6.0")

    assert lowered == {
        **document, "cdiVersion": "0.6.0", "containerEdits": {"env": ["C=d"]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "maximum", "message"),
    [
        (
            {"devices": [device("0")]},
            "0.4.0",
            "a device name that begins with a digit needs 0.5.0",
        ),
        ({"kind": "a.b/c.d"}, "0.5.0", "a class with a dot needs 0.6.0"),
        (
            {"devices": [device(deviceNodes=[{"path": "/a", "hostPath": "/b"}])]},
            "0.4.0",
            "the hostPath of a device node needs 0.5.0",
        ),
        (
            {"devices": [device(netDevices=[{"hostInterfaceName": "a", "name": "b"}])]},
            "1.0.0",
            "netDevices needs 1.1.0",
        ),
        ({"containerEdits": {"intelRdt": {"closID": "a"}}}, "0.6.0", "intelRdt needs 0.7.0"),
        (
            {"containerEdits": {"mounts": [{**BIND, "type": "tmpfs"}]}},
            "0.3.0",
            "the type of a mount needs 0.4.0",
        ),
        (
            {"containerEdits": {"mounts": [{**BIND, "options": ["ro"]}]}},
            "0.3.0",
            "the type of a mount needs 0.4.0",
        ),
    ],
)
def test_what_cannot_be_left_out_is_an_error_that_names_it(
    more: dict[str, Any], maximum: str, message: str
) -> None:
    with pytest.raises(CdiSpecError) as caught:
        downgrade.lower(spec(**more), maximum)

    assert caught.value.message == f"the spec cannot be written for CDI {maximum}: {message}"
    assert caught.value.hint


def test_a_device_that_would_be_empty_is_an_error() -> None:
    only_gids = {"name": "x", "containerEdits": {"additionalGids": [44]}}

    with pytest.raises(CdiSpecError, match="device x has no edits left"):
        downgrade.lower(spec(devices=[only_gids]), "0.5.0")


@pytest.mark.parametrize("version", ["", "0.2.0", "0.5", "9.0.0", "new"])
def test_a_maximum_that_is_no_version_is_a_usage_error(version: str) -> None:
    with pytest.raises(UsageError, match="is unknown, or too old for any engine"):
        downgrade.lower(spec(), version)
