# SPDX-License-Identifier: Apache-2.0
"""The depth of a JSON text is that of the scanner, with any strings."""

from __future__ import annotations

import json
import resource
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import DocumentError
from nvct.oci import jsontext
from tests.support.shim_lab import PYTHON, REPOSITORY

LIMIT = jsontext.DEPTH_LIMIT
STACK = 256 << 10


def nested(depth: int, inner: str = "1") -> str:
    return '{"a":[' * (depth // 2) + inner + "]}" * (depth // 2)


def refused(text: str) -> bool:
    try:
        jsontext.check_depth(text, "x.json")
    except DocumentError:
        return True
    return False


@pytest.mark.parametrize("inner", ["1", '"]}"', '"\\\\"', '"\\\\\\"]"', '"\\u005d\\\\", "\\"]"'])
def test_the_limit_counts_brackets_outside_of_strings(inner: str) -> None:
    assert not refused(nested(LIMIT, inner))
    assert refused(nested(LIMIT + 2, inner))


@pytest.mark.parametrize("hides", ['"]"', '"\\\\","]"', '"\\"]"'])
def test_no_string_hides_a_level(hides: str) -> None:
    assert refused(f"[{hides}," * (LIMIT + 1))


def test_many_values_beside_one_another_are_not_deep() -> None:
    assert not refused("[" + ",".join(['{"[[[[":[]}'] * 10_000) + "]")


@given(st.recursive(st.text() | st.integers(), st.lists, max_leaves=20))
def test_no_shallow_document_is_refused(value: object) -> None:
    text = json.dumps([[], value] * LIMIT, ensure_ascii=False)

    assert not refused(text)
    assert jsontext.parse(text, "x") == json.loads(text)


@pytest.mark.parametrize("depth", [LIMIT, LIMIT + 2, 1000, 9000, 100_000])
def test_on_a_small_stack_deep_nesting_is_an_error_and_not_a_crash(depth: int) -> None:
    code = (
        f"import sys;sys.path.append({str(REPOSITORY)!r});from nvct.oci import jsontext;"
        "jsontext.parse(sys.stdin.read(),'x.json');print('read')"
    )

    result = subprocess.run(
        [PYTHON, "-I", "-S", "-c", code], input=nested(depth), text=True, check=False,
        capture_output=True, env={"BIG": "x" * 50_000},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK)),
    )  # fmt: skip

    if depth <= LIMIT:
        assert result.stdout == "read\n", result.stderr
    else:
        assert "it is nested too deeply" in result.stderr
