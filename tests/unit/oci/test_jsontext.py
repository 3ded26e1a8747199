# SPDX-License-Identifier: Apache-2.0
"""JSON text: reading, refusals, depth, and the text that an edit does not change."""

from __future__ import annotations

import json
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.errors import DocumentError
from nvct.oci import document as json_documents
from nvct.oci import jsontext
from nvct.oci.document import ELEMENTS, Document
from tests.support.processes import captured
from tests.support.shim_lab import PYTHON, REPOSITORY

WANT: json_documents.Schema = {
    "a": {"list": ELEMENTS, "deep": {"list": ELEMENTS, "value": None}},
    "list": ELEMENTS,
    "value": None,
    "open": {},
}


def document(text: str) -> Document:
    return Document(text, WANT, "x.json")


def edited(text: str, *edits: tuple[str, tuple[str, ...], list[str] | str]) -> str:
    json_document = document(text)
    for verb, path, value in edits:
        getattr(json_document, verb)(path, value)
    return json_document.render()


NO_JSON = [
    "", " ", "{", "[", '"', "[1", "[1,", "[1,]", "[,1]", "[1 2]", "{,}", '{"a"}', '{"a":}', '{"a":1',
    '{"a":1,', '{"a":1,}', '{"a" 1}', '{"a":1 "b":2}', "{a:1}", "{'a':1}", "{1:2}", "nul", "truex",
    "NaN", "[NaN]", "Infinity", "-Infinity", '{"value":NaN}', "01", "+1", "1.", ".5", "-", "0x1",
    '"\n"', '"\x00"', '"\\x"', '"\\u12"', "{} {}", "{}x", "{}\x00", "\ufeff{}", "// c\n{}",
    '{"a":{}}}', '{"list":[1}', '{"list":[1]', '{"a":{"list":[', '{"a":{"list":[1,', '{"a"', '{"a":',
]  # fmt: skip


@pytest.mark.parametrize("text", NO_JSON)
def test_malformed_json_is_refused_by_parse_and_document(text: str) -> None:
    with pytest.raises(DocumentError, match=r"^x.json is not JSON: "):
        jsontext.parse(text, "x.json")
    with pytest.raises(DocumentError, match=r"^x.json is not (JSON: |a JSON object)"):
        document(text)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"{}"', "true"])
def test_a_document_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match=r"^x.json is not a JSON object$"):
        document(text)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"value":' + "[" * 100_000, '{"x":' + '{"x":' * 100_000]
)
def test_deep_nesting_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(DocumentError, match="it is nested too deeply"):
        jsontext.parse(text, "x.json")
    with pytest.raises(DocumentError, match="it is nested too deeply"):
        document('{"y":' + text)


def test_the_nesting_of_a_seccomp_profile_is_accepted() -> None:
    text = '{"value":' + "[" * 100 + "]" * 100 + "}"
    assert document(text).render() == text


def test_an_integer_too_long_for_python_is_refused_with_a_sentence() -> None:
    with pytest.raises(DocumentError, match=r"^x.json is not JSON: "):
        document('{"value":' + "1" * 5000 + "}")


@pytest.mark.parametrize(
    "text", ['{"list":[],"list":[]}', '{"a":{},"value":1,"a":{}}', '{"a":{"list":1,"list":2}}',
             '{"value":1,"v\\u0061lue":2}', '{"list":[{"x":1,"x":2}]}',
             '{"a":{"list":[[{"x":1},{"y":{"x":1,"x":1}}]]}}', '{"value":{"x":1,"\\u0078":2}}']
)  # fmt: skip
def test_a_duplicate_key_in_the_schema_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match=r"^x.json is ambiguous: duplicate key \w+$"):
        document(text)


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        ('{"z":1,"z":2,"a":{"z":1,"z":2}}', ("a", "list"), '{"z":1,"z":2,"a":{"z":1,"z":2,"list":[2]}}'),
        ('{"l\\u0069st":[1]}', ("list",), '{"l\\u0069st":[1,2]}'),
        ('{\n\t"z" : 1.50e+2 ,\r\n "list" : [ 1e0 , 0.10 ] , "y":-0,"\\u0051":"\\/\\u00e4ä"}\n', ("list",),
         '{\n\t"z" : 1.50e+2 ,\r\n "list" : [ 1e0 , 0.10,2 ] , "y":-0,"\\u0051":"\\/\\u00e4ä"}\n'),
    ],
    ids=["duplicate keys outside the schema", "an escaped name", "white space, order and numbers"],
)  # fmt: skip
def test_what_an_edit_does_not_change_stays_as_it_is(
    text: str, path: tuple[str, ...], after: str
) -> None:
    assert edited(text, ("append", path, ["2"])) == after


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", '{"a":{"list":[1,2]}}'),
        ('{"z":1 }', '{"z":1,"a":{"list":[1,2]} }'),
        ('{"a":null}', '{"a":{"list":[1,2]}}'),
        ('{"a":{"list":null},"z":1}', '{"a":{"list":[1,2]},"z":1}'),
        ('{"a":{"list":[]}}', '{"a":{"list":[1,2]}}'),
        ('{"a":{"list":[ ]}}', '{"a":{"list":[1,2 ]}}'),
        ('{"a":{"list":[\n 0\n]}}', '{"a":{"list":[\n 0,1,2\n]}}'),
    ],
)
def test_appending_creates_missing_members_and_moves_no_others(text: str, expected: str) -> None:
    assert edited(text, ("append", ("a", "list"), ["1", "2"])) == expected


@pytest.mark.parametrize("value", ["{}", "1", '"x"', "true", "false", '{"[]":[]}'])
def test_an_array_of_another_type_is_refused(value: str) -> None:
    json_document = document(f'{{"list":{value}}}')
    for edit in (json_document.append, json_document.rewrite):
        with pytest.raises(DocumentError, match=r"^x.json: list is not an array$"):
            edit(("list",), ["1"])
    assert json_document.render() == json_document.text


@pytest.mark.parametrize("value", ["[]", "1", '"x"', "true", "false"])
def test_an_object_of_another_type_is_refused(value: str) -> None:
    json_document = document(f'{{"a":{value}}}')
    json_document.append(("a", "deep", "list"), ["1"])
    with pytest.raises(DocumentError, match=r"^x.json: a is not an object$"):
        json_document.render()


def test_a_member_without_a_parent_object_is_none() -> None:
    json_document = document('{"a":5,"value":{"x":1},"list":[null,1]}')
    assert json_document.value(("a", "deep", "value")) is None
    assert json_document.value(("value",)) == {"x": 1}
    assert json_document.value(("value", "x")) is None
    assert [node.value for node in json_document.elements(("list",))] == [None, 1]
    assert json_document.elements(("a", "list")) == []


def test_lone_surrogates_and_bytes_that_are_no_utf_8_survive() -> None:
    data = b'{"list":["\\ud800","\xff\xc3"],"\xfe":"\xed\xa0\x80"}'
    text = edited(data.decode("utf-8", "surrogateescape"), ("append", ("list",), ["1"]))
    assert text.encode("utf-8", "surrogateescape") == data.replace(b"]", b",1]")


@pytest.mark.parametrize(
    "value", [None, True, False, 0, -5, 2**70, "", 'q"\\/\n\x00\x7f', "ä😀", "\ud800", [], {}, [[]],
              {"": {"k": [1, None, "x"]}}]
)  # fmt: skip
def test_dumps_returns_ascii_with_the_same_value(value: object) -> None:
    text = jsontext.dumps(value)
    assert text.isascii()
    assert jsontext.parse(text, "x") == value
    assert json.loads(text) == value
    assert jsontext.dumps((value, (2,))) == f"[{text},[2]]"


@pytest.mark.parametrize("value", [float("inf"), b"x", {1: 2}, {"a"}, object()])
def test_data_of_other_types_is_not_dumped(value: object) -> None:
    with pytest.raises(TypeError):
        jsontext.dumps(value)


# The depth of a JSON text is that of the scanner, with any strings.


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

    result = captured(
        [PYTHON, "-I", "-S", "-c", code], input=nested(depth), env={"BIG": "x" * 50_000},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK)),
    )  # fmt: skip

    if depth <= LIMIT:
        assert result.stdout == "read\n", result.stderr
    else:
        assert "it is nested too deeply" in result.stderr
