# SPDX-License-Identifier: Apache-2.0
"""Changes of CDI specs: lowered and moved specs are valid, and comparisons find differences."""

from functools import partial
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from nvct.cdi import versions
from nvct.cdi.check import compare, engines
from nvct.cdi.make import downgrade
from nvct.cdi.make.edits import move_root
from nvct.cdi.read.validate import validate
from nvct.cdi.types import Spec
from nvct.errors import CdiSpecError
from tests.property.test_cdi import SPEC

VERSIONS = versions.KNOWN[versions.KNOWN.index(versions.LOWEST) :]
ROOT = st.sampled_from(["/", "", "/a", "/a/", "/a/b"])


@given(SPEC, st.sampled_from(VERSIONS))
def test_a_lowered_spec_needs_no_higher_version_than_requested(
    document: dict[str, Any], maximum: str
) -> None:
    spec = validate(document, source="document")
    try:
        lowered, lost = downgrade.lower(spec, maximum)
    except CdiSpecError:
        assert versions.is_older(maximum, versions.minimum_version(spec))
        return

    assert not versions.is_older(maximum, lowered["cdiVersion"])
    assert validate(lowered, source="lowered") == lowered
    assert bool(lost) <= (compare.differences(spec, lowered) != [])
    if not versions.is_older(maximum, versions.minimum_version(spec)):
        assert lowered == {**spec, "cdiVersion": versions.minimum_version(spec)}


@given(SPEC, st.sampled_from(list(engines.ENGINES)))
def test_an_engine_reads_a_spec_that_is_lowered_for_it(
    document: dict[str, Any], engine: str
) -> None:
    spec = validate(document, source="document")
    for since, version, _library in engines.ENGINES[engine][1]:
        try:
            lowered, _lost = downgrade.lower(spec, version)
        except CdiSpecError:
            assert engines.refusal(spec, engine, since)
            continue
        refusal = engines.refusal(lowered, engine, since)
        assert not refusal or 'permissions are "none"' in refusal


@given(SPEC, ROOT, ROOT)
def test_a_moved_spec_is_valid(document: dict[str, Any], source: str, target: str) -> None:
    spec = cast("dict[str, Any]", validate(document, source="document"))
    for move in (move_root, partial(move_root, in_container=True)):
        moved = cast("Spec", move(spec, source, target))

        assert validate(moved, source="moved") == moved
        assert compare.differences(moved, moved) == []
        assert move(spec, source, source) == move(move(spec, source, source), source, source)
