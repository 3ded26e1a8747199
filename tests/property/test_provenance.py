# SPDX-License-Identifier: Apache-2.0
"""Provenance of any files is one harmless line, and is read unchanged."""

import json

import yaml
from hypothesis import given
from hypothesis import strategies as st

from nvct.cdi.make import provenance, store
from nvct.cdi.make.provenance import Provenance
from nvct.cdi.read import load
from nvct.cdi.types import Spec
from nvct.host.model import Inventory

SPEC: Spec = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"env": ["A=b"]}}],
}
NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
TEXT = st.text(max_size=30)
PROVENANCE = st.builds(
    Provenance,
    generator=TEXT,
    driver=TEXT,
    module=TEXT,
    mode=TEXT,
    inputs=TEXT,
    files=st.dictionaries(
        st.text(max_size=60), st.tuples(NUMBERS, NUMBERS, NUMBERS, st.integers()), max_size=5
    ),
)


@given(PROVENANCE)
def test_annotations_survive_yaml(origin: Provenance) -> None:
    # NUL is no part of a version or path, and no spec may have it.
    spec: Spec = {**SPEC, "annotations": provenance.as_annotations(origin)}
    if any("\0" in value for value in spec["annotations"].values()):
        return

    back = load.loads(store.dumps(spec), source="spec")

    assert provenance.read(back, "/no/such/file") == origin


@given(st.text(max_size=60))
def test_the_comment_changes_nothing_for_a_reader_of_yaml(driver: str) -> None:
    older: Spec = {**SPEC, "cdiVersion": "0.3.0"}

    _, comment = provenance.attach(older, Inventory(driver_version=driver))

    assert comment.isascii()
    assert comment[:-1].isprintable()
    assert yaml.safe_load(comment.encode() + store.dumps(older)) == yaml.safe_load(
        store.dumps(older)
    )
    assert json.loads(comment.removeprefix("# nvct: ")).get("driver", "") == driver
