# SPDX-License-Identifier: Apache-2.0
"""Documents in rows: read unchanged, and unused rows are not parsed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.container.plan import lazy_json
from nvct.errors import DocumentError
from nvct.oci import jsontext

MOUNT = ["/usr/lib/liba.so", '{"destination":"/usr/lib/liba.so"}']
OTHER = ["/x\ny", '{"destination":"/x\\ny"}']
ENTRY = ["x86_64", "libcuda.so.1", "/lib64/libcuda.so.1"]


def edits(**more: Any) -> dict[str, Any]:
    return {"env": [], "nodes": [], "mounts": [], **more}


def plan() -> dict[str, Any]:
    compute = edits(mounts=[OTHER, MOUNT], cache=[ENTRY])
    common = edits(mounts=[MOUNT], cache=[], parts={"compute": compute, "utility": edits()})
    device = {"spec": 0, "edits": 0, "facts": [], "refuse": ""}
    return {
        "nvct-plan": 2,
        "facts": [["absent", "/x", None]],
        "specs": [{"path": "/etc/cdi/a.json", "facts": [], "edits": common, "refuse": ""}],
        "edits": [edits(nodes=[{"path": "/dev/nvidia0"}]), edits(mounts=[MOUNT])],
        "devices": {"k=0": device, "k=GPU-1": dict(device), "k=1": {**device, "edits": 1}},
        "farm": {"view": "/farm/1"},
    }  # fmt: skip


def text(document: dict[str, Any]) -> str:
    head, lines = lazy_json.split(document)
    return "\n".join([jsontext.dumps(head), *lines])


def lazy_plan(document: dict[str, Any] | None = None) -> dict[str, Any]:
    return lazy_json.read(text(document or plan()))


def test_a_plan_comes_back_whole() -> None:
    assert lazy_json.join(lazy_plan()) == plan()
    assert text(lazy_json.join(lazy_plan())) == text(plan())


def test_devices_behave_as_a_dict() -> None:
    devices = lazy_plan()["devices"]
    assert "k=0" in devices
    assert "k=9" not in devices
    assert list(devices) == ["k=0", "k=GPU-1", "k=1"]
    assert len(devices) == 3
    assert dict(devices.items()) == plan()["devices"]
    assert devices["k=1"]["edits"] == devices.get("k=1")["edits"] == 1
    assert devices.get("k=9") is None
    with pytest.raises(KeyError):
        devices["k=9"]


def test_names_of_one_device_share_a_row() -> None:
    devices = lazy_plan()["devices"]
    assert devices["k=0"] is devices["k=GPU-1"]
    assert text(plan()).count('"refuse":"","') + text(plan()).count('"refuse":""}') == 3


def test_splitting_changes_nothing_of_the_document() -> None:
    document = plan()
    lazy_json.split(document)
    assert document == plan()


def test_mounts_of_a_spec_behave_as_a_list() -> None:
    common = lazy_plan()["specs"][0]["edits"]
    mounts = common["parts"]["compute"]["mounts"]
    assert len(mounts) == 2
    assert mounts[0] == OTHER
    assert [*mounts] == [OTHER, MOUNT]
    assert common["parts"]["utility"]["mounts"] == []


def test_an_unused_row_is_not_parsed() -> None:
    lines = text(plan()).split("\n")
    lines[2:] = ["?"] * len(lines[2:])  # all but the spec: its mounts, edits and devices
    document = lazy_json.read("\n".join(lines))
    assert document["specs"][0]["path"] == "/etc/cdi/a.json"  # type: ignore[index]  # rows
    with pytest.raises(DocumentError, match="a row is not JSON"):
        list(document["specs"][0]["edits"]["mounts"])  # type: ignore[index]  # rows


@pytest.mark.parametrize(
    "damaged",
    ["", "[]", '{"rows":1}', '{"rows":{"specs":[0,1]}}', '{"rows":{"mounts":0,"specs":[1]}}',
     '{"rows":{"mounts":0,"devices":[0,1]}}', '{"rows":[]}'],
)  # fmt: skip
def test_a_damaged_head_is_reported(damaged: str) -> None:
    with pytest.raises(DocumentError):
        lazy_json.read(damaged)


def test_a_missing_row_is_a_lookup_error() -> None:
    document = lazy_json.read('{"rows":{"mounts":1,"specs":[0,1]}}')
    with pytest.raises(LookupError):
        document["specs"][0]  # type: ignore[index]  # rows


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["specs", "edits", "devices", "facts", "x"]), JSON, min_size=1)
)
def test_any_document_comes_back(document: dict[str, Any]) -> None:
    assert lazy_json.join(lazy_json.read(text(document))) == json.loads(json.dumps(document))
