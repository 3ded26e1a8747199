# SPDX-License-Identifier: Apache-2.0
"""What makes a document a CDI spec; the files in cdi/examples are checked as well."""

import copy
from typing import Any

import pytest

from nvct.cdi.read.validate import check_annotations, validate
from nvct.errors import CdiSpecError, RequestError

SPEC: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.com/device",
    "devices": [{"name": "a", "containerEdits": {"env": ["A=1"]}}],
}


def with_edits(edits: dict[str, Any]) -> dict[str, Any]:
    return {**SPEC, "devices": [{"name": "a", "containerEdits": edits}]}


def refusal(document: object) -> str:
    with pytest.raises(CdiSpecError) as caught:
        validate(document, source="file")
    return caught.value.message


def test_a_valid_spec_comes_back_as_it_is() -> None:
    before = copy.deepcopy(SPEC)

    assert validate(SPEC, source="file") == SPEC
    assert before == SPEC


def test_nulls_are_as_good_as_absent() -> None:
    document = {
        **SPEC,
        "annotations": None,
        "containerEdits": None,
        "devices": [
            {
                "name": "a",
                "annotations": None,
                "containerEdits": {
                    "env": None,
                    "deviceNodes": [{"path": "/dev/a", "hostPath": None, "uid": None}],
                },
            }
        ],
    }

    assert validate(document, source="file") == with_edits({"deviceNodes": [{"path": "/dev/a"}]})


def test_the_case_of_member_names_does_not_matter_as_in_engines() -> None:
    document = {
        "CDIVersion": "1.1.0",
        "Kind": "vendor.com/device",
        "devices": [{"NAME": "a", "containeredits": {"additionalGIDs": [44]}}],
    }

    assert validate(document, source="file") == with_edits({"additionalGids": [44]})


def test_one_member_in_two_spellings_is_refused() -> None:
    document = with_edits({"additionalGids": [1], "additionalGIDs": [2]})

    assert refusal(document) == (
        "file: devices[0].containerEdits has additionalGids twice, in different spellings"
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "file is empty"),
        ("text", "file is 'text', not a table"),
        ({}, "file has no cdiVersion"),
        ({**SPEC, "cdiVersion": 1}, "file: cdiVersion is 1, not a string"),
        ({**SPEC, "cdiVersion": "1.2"}, "file: cdiVersion '1.2' is unknown"),
        ({**SPEC, "kind": None}, "file has no kind"),
        ({**SPEC, "kind": "a"}, "file: kind: 'a' is not a CDI kind"),
        ({**SPEC, "devices": {}}, "file: devices is {}, not a list"),
        ({**SPEC, "devices": [None]}, "file: devices[0] is None, not a table"),
        ({**SPEC, "devices": None}, "file has no devices"),
        ({**SPEC, "extra": 1}, "file has the unknown field 'extra'"),
        ({1: 2}, "file has the unknown field 1"),
        ({**SPEC, "annotations": {"a": 1}}, "file: annotations.a is 1, not a string"),
        ({**SPEC, "annotations": {"a": None}}, "file: annotations.a is None, not a string"),
        ({**SPEC, "annotations": []}, "file: annotations is [], not a table"),
        (
            {**SPEC, "annotations": {"/": ""}},
            "file: annotations: annotation key '/' does not begin with a domain name",
        ),
        ({**SPEC, "devices": [{"name": "a"}]}, "file: devices[0] has no container edits"),
        (
            {**SPEC, "devices": [{"containerEdits": {"env": ["A=1"]}}]},
            "file: devices[0] has no name",
        ),
    ],
)
def test_what_is_no_spec_is_refused(document: object, message: str) -> None:
    assert refusal(document) == message


@pytest.mark.parametrize(
    ("edits", "position"),
    [
        ({}, " has no container edits"),
        ({"env": [], "mounts": [], "additionalGids": []}, " has no container edits"),
        ({"env": ["A"]}, ".containerEdits.env[0] is 'A', not a variable"),
        ({"env": ["A=1", ""]}, ".containerEdits.env[1] is '', not a variable"),
        ({"env": ["A=\0"]}, ".containerEdits.env[0] has a NUL character: 'A=\\x00'"),
        ({"env": ["A=\ud800"]}, ".containerEdits.env[0] is not Unicode text: 'A=\\ud800'"),
        ({"deviceNodes": [{}]}, ".containerEdits.deviceNodes[0] has no path"),
        (
            {"deviceNodes": [{"path": "/a", "major": 1.0}]},
            ".containerEdits.deviceNodes[0].major is 1.0, not a number",
        ),
        (
            {"deviceNodes": [{"path": "/a", "minor": True}]},
            ".containerEdits.deviceNodes[0].minor is True, not a number",
        ),
        (
            {"deviceNodes": [{"path": "/a", "uid": 2**32}]},
            ".containerEdits.deviceNodes[0].uid is 4294967296, not in 0 to 4294967295",
        ),
        (
            {"deviceNodes": [{"path": "/a", "permissions": "rnone"}]},
            ".containerEdits.deviceNodes[0].permissions is 'rnone'",
        ),
        (
            {"mounts": [{"hostPath": "/a", "containerPath": ""}]},
            ".containerEdits.mounts[0] has no containerPath",
        ),
        (
            {"hooks": [{"path": "/a"}]},
            ".containerEdits.hooks[0] has no hookName",
        ),
        (
            {"hooks": [{"hookName": "prestart", "path": "/a", "timeout": -1}]},
            ".containerEdits.hooks[0].timeout is -1, not in 0 to 9223372036854775807",
        ),
        (
            {"netDevices": [{"name": "a"}]},
            ".containerEdits.netDevices[0] has no hostInterfaceName",
        ),
        (
            {
                "netDevices": [
                    {"hostInterfaceName": "e", "name": "a"},
                    {"hostInterfaceName": "e", "name": "b"},
                ]
            },
            ".containerEdits.netDevices[1].hostInterfaceName is 'e', a duplicate",
        ),
        ({"intelRdt": {"enableCMT": 1}}, ".containerEdits.intelRdt.enableCMT is 1, not true or false"),
        ({"intelRdt": {"closID": ".."}}, ".containerEdits.intelRdt.closID '..' cannot name a directory"),
        ({"intelRdt": {"closID": "a\nb"}}, ".containerEdits.intelRdt.closID 'a\\nb' cannot name a directory"),
        ({"env": "A=1"}, ".containerEdits.env is 'A=1', not a list"),
        ({"env": [["A=1"]]}, ".containerEdits.env[0] is ['A=1'], not a string"),
    ],
)  # fmt: skip
def test_edits_that_engines_refuse(edits: dict[str, Any], position: str) -> None:
    assert refusal(with_edits(edits)) == f"file: devices[0]{position}"


@pytest.mark.parametrize(
    "edits",
    [
        {"env": ["A=", "B==", "C=a\nb"]},
        {"deviceNodes": [{"path": "relative"}]},
        {"deviceNodes": [{"path": "/a", "type": "", "permissions": ""}]},
        {"deviceNodes": [{"path": "/a", "permissions": "none"}]},
        {"deviceNodes": [{"path": "/a", "fileMode": 0o20666}]},
        {"mounts": [{"hostPath": "a", "containerPath": "../b", "options": ["whatever"]}]},
        {"intelRdt": {}},
        {"intelRdt": {"closID": "/"}},
        {"additionalGids": [0]},
    ],
)
def test_edits_that_engines_take(edits: dict[str, Any]) -> None:
    assert validate(with_edits(edits), source="file") == with_edits(edits)


def test_common_edits_are_checked_as_well_and_may_be_empty() -> None:
    assert refusal({**SPEC, "containerEdits": {"env": ["A"]}}) == (
        "file: containerEdits.env[0] is 'A', not a variable"
    )
    assert validate({**SPEC, "containerEdits": {}}, source="file")["containerEdits"] == {}
    assert len(refusal(with_edits({"env": ["x" * 100_000]}))) < 150


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_the_first_two_versions_are_too_low_for_any_spec(version: str) -> None:
    assert refusal({**SPEC, "cdiVersion": version}) == (
        f"file: cdiVersion is {version}, but every spec needs 0.3.0"
    )
    assert validate({**SPEC, "cdiVersion": "v0.3.0"}, source="file")["cdiVersion"] == "v0.3.0"


@pytest.mark.parametrize(
    "key", ["a", "vendor.com/a", "Vendor.com/A_b.c-d", "a" * 63, f"{'a.' * 126}a/b"]
)
def test_keys_that_kubernetes_takes(key: str) -> None:
    check_annotations({key: ""})


@pytest.mark.parametrize(
    "key", ["", "/a", "vendor.com/", "-a", "a-", "a b", "a" * 64, "a/b/c", "v_endor/a", "é", "a\n"]
)
def test_keys_that_kubernetes_refuses(key: str) -> None:
    with pytest.raises(RequestError, match="annotation key"):
        check_annotations({key: ""})


def test_annotations_are_limited_all_together() -> None:
    half = "x" * (128 << 10)

    check_annotations({"a": half, "b": half[2:]})
    with pytest.raises(RequestError, match="more than 262144"):
        check_annotations({"a": half, "b": half[1:]})
