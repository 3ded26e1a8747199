# SPDX-License-Identifier: Apache-2.0
"""The JSON schema, where it is stricter than upstream's."""

import copy
from typing import Any

import pytest

from nvct.cdi import types, versions
from nvct.cdi.read import schema, spec_fields
from nvct.errors import CdiSpecError

SPEC: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/device",
    "devices": [{"name": "a", "containerEdits": {}}],
}


def with_edits(edits: dict[str, Any]) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec["devices"][0]["containerEdits"] = edits
    return spec


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"env": ["A"]},
        {"env": ["=A"]},
        {"env": [1]},
        {"environment": ["A=1"]},
        {"deviceNodes": [{"path": "dev/null"}]},
        {"deviceNodes": [{"path": "/dev/null", "hostPath": "null"}]},
        {"deviceNodes": [{"path": "/dev/null", "filemode": 438}]},
        {"deviceNodes": [{"path": "/dev/null", "fileMode": "0666"}]},
        {"deviceNodes": [{"path": "/dev/null", "permissions": "rwm\n"}]},
        {"deviceNodes": [{"path": "/dev/null", "permissions": ""}]},
        {"deviceNodes": [{"path": "/dev/null", "major": True}]},
        {"deviceNodes": [{"path": "/dev/\0"}]},
        {"hooks": [{"hookName": "prestart", "path": "/a", "timeout": -1}]},
        {"netDevices": [{"hostInterfaceName": "..", "name": "a"}]},
        {"netDevices": [{"hostInterfaceName": "interface-name-too-long", "name": "a"}]},
        {"intelRdt": {"closID": ".."}},
        {"intelRdt": {"closID": "a/b"}},
        {"additionalGids": [0]},
        {"mounts": None},
    ],
)
def test_edits_that_break_it(edits: dict[str, Any]) -> None:
    with pytest.raises(CdiSpecError, match=r"^file: devices\[0\].containerEdits"):
        schema.check(with_edits(edits), source="file")


@pytest.mark.parametrize("version", [v for v in versions.KNOWN if v >= versions.LOWEST])
def test_a_version_may_begin_with_v(version: str) -> None:
    for text in (version, f"v{version}"):
        schema.check({**with_edits({"env": ["A=1"]}), "cdiVersion": text}, source="file")
        assert versions.is_known(text)


@pytest.mark.parametrize(
    "version",
    ["V1.1.0", "vv1.1.0", "v", "1.1", "1.2.0", "0.2.0", "1.1.0\n", " 1.1.0", "v1.1.0-rc1", 1.1],
)
def test_a_version_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(CdiSpecError, match="cdiVersion breaks the schema"):
        schema.check({**with_edits({"env": ["A=1"]}), "cdiVersion": version}, source="file")


@pytest.mark.parametrize("name", ["", "a\n", "-a", "a/b", "é", "a" * 254])
def test_device_names_that_break_it(name: str) -> None:
    spec = with_edits({"env": ["A=1"]})
    spec["devices"][0]["name"] = name

    with pytest.raises(CdiSpecError, match=r"devices\[0\].name breaks the schema"):
        schema.check(spec, source="file")


@pytest.mark.parametrize("kind", ["vendor.com", "v/device", "vendor.com/d", "vendor.com/device\n"])
def test_kinds_that_break_it(kind: str) -> None:
    with pytest.raises(CdiSpecError, match="kind breaks the schema"):
        schema.check({**with_edits({"env": ["A=1"]}), "kind": kind}, source="file")


def test_a_huge_value_makes_a_short_message() -> None:
    with pytest.raises(CdiSpecError) as caught:
        schema.check(["x" * 10_000], source="file")

    assert len(caught.value.message) < 160
    assert caught.value.message.startswith("file breaks the schema: ")


@pytest.mark.parametrize(
    ("described", "name"),
    [
        (types.Spec, ""),
        (types.Device, "device"),
        (types.ContainerEdits, "containerEdits"),
        (types.DeviceNode, "deviceNode"),
        (types.NetDevice, "netDevice"),
        (types.Mount, "mount"),
        (types.Hook, "hook"),
        (types.IntelRdt, "intelRdt"),
    ],
)
def test_the_schema_has_the_members_of_the_description(described: type, name: str) -> None:
    known = schema.schema()["definitions"][name] if name else schema.schema()
    members = described.__annotations__
    is_total = described is types.NetDevice
    required = [n for n, kind in members.items() if is_total or kind.startswith("Required[")]

    assert list(known["properties"]) == list(members)
    assert known.get("required", []) == required
    assert known["additionalProperties"] is False


def test_numbers_and_flags_are_those_of_the_description() -> None:
    assert {"major", "filemode", "additionalgids", "timeout"} <= spec_fields.NUMBERS
    assert {"enablecmt", "enablembm", "enablemonitoring"} == spec_fields.FLAGS
