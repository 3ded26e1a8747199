# SPDX-License-Identifier: Apache-2.0
"""JSON edited in place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.config.tables import ABSENT
from nvct.engine import json_file
from nvct.errors import EngineConfigError

ENTRY = {"path": "nvidia-container-runtime", "args": []}
REGISTER = [(("runtimes", "nvidia"), ENTRY)]
REMOVE = [(("runtimes", "nvidia"), ABSENT)]


def edited(text: str, path: tuple[str, ...], value: object) -> str:
    after = json_file.edit(text.encode(), [(path, value)], "daemon.json")
    assert after is not None
    return after.decode()


def refused(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(EngineConfigError) as caught:
        json_file.edit(data, REGISTER, "/etc/docker/daemon.json")
    assert caught.value.hint.endswith("nothing was changed")
    return caught.value.message.removeprefix("/etc/docker/daemon.json ")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{\n  // mine\n  "a": 1\n}', "line 2, column 3: a comment, which JSON does not have"),
        ('{"a": 1} /* x */', "line 1, column 10: a comment, which JSON does not have"),
        ('{\n  "a": 1,\n  # b\n}', "line 3, column 3: a comment, which JSON does not have"),
        ('{"a": 1,}', "line 1, column 9: a comma with nothing after it"),
        ('{"a": [1, ]}', "a comma with nothing after it"),
        ('{"a": 1}}', "line 1, column 9: something follows the end of the object"),
        ('{"a": 1}\n{"b": 2}', "line 2, column 1: something follows the end of the object"),
        ('{"a": 1 "b": 2}', "line 1, column 9: a comma is missing"),
        ('{"a" 1}', "line 1, column 6: a colon is missing"),
        ("{a: 1}", "line 1, column 2: a name in double quotes is missing"),
        ("{'a': 1}", "line 1, column 2: single quotes, where JSON has double ones"),
        ('{"a": 1', "line 1, column 8: the file ends too early"),
        ('{"a":', "line 1, column 6: the file ends too early"),
        ('{"a": NaN}', "line 1, column 7: NaN is not JSON"),
        ('{"a": "x\ty"}', "line 1, column 9: invalid control character"),
        ("[1]", "line 1, column 1: an array, not an object"),
        ("null", "line 1, column 1: null, not an object"),
        ('{"a":' * 5000, "line 1, column 1: it is nested too deeply"),
        ('{"a": ' + "[" * 100_000, "line 1, column 1: it is nested too deeply"),
        (b'\xef\xbb\xbf{"a": 1}', "line 1, column 1: a byte order mark"),
        (b'\xff\xfe{\0"\0', "line 1, column 1: a byte order mark"),
        (b'{"\xc3\xa4":\n "\xe4"}', "line 2, column 3: not UTF-8"),
        ('{"runtimes": []}', "line 1, column 14: runtimes is an array, not an object"),
        ('{"runtimes": "x"}', "line 1, column 14: runtimes is a string, not an object"),
        (
            '{"runtimes": {},\n "runtimes": {}}',
            "line 2, column 2: duplicate key runtimes",
        ),
        (
            '{"runtimes": {"nvidia": {}, "nvidia": {}}}',
            "line 1, column 29: duplicate key nvidia",
        ),
    ],
    ids=lambda value: str(value)[:24].encode("unicode_escape").decode(),
)
def test_text_that_go_refuses_is_refused_with_line_and_column(
    text: str | bytes, reason: str
) -> None:
    message = refused(text)
    assert message == reason or message.endswith(f": {reason}")


def test_a_foreign_duplicate_name_is_not_changed() -> None:
    text = '{"labels": ["a"], "labels": ["b"]}'
    assert (
        edited(text, ("debug",), value=True) == '{"labels": ["a"], "labels": ["b"], "debug": true}'
    )


@pytest.mark.parametrize("data", [None, b"", b" \n\t\n"], ids=["no file", "empty", "blank"])
def test_a_file_without_content_is_an_empty_object(data: bytes | None) -> None:
    after = json_file.edit(data, REGISTER, "daemon.json")
    assert after is not None
    assert json.loads(after) == {"runtimes": {"nvidia": ENTRY}}
    assert after.endswith(b"}\n")
    assert json_file.edit(data, REMOVE, "daemon.json") == data


def test_a_value_is_replaced_and_nothing_else() -> None:
    text = '{\n  "runtimes": {\n    "nvidia": {"path" : "old", "runtimeArgs": ["--x"]}\n  }\n}'
    after = edited(text, ("runtimes", "nvidia", "path"), "new")
    assert after == text.replace('"old"', '"new"')


def test_an_equal_value_keeps_its_spelling() -> None:
    text = '{"a": "\\u0041", "b": {"y": 1, "x": [ ] }, "c": 1}'
    assert edited(text, ("a",), "A") == text
    assert edited(text, ("b",), {"x": [], "y": 1}) == text
    assert edited(text, ("c",), value=True) == text.replace('"c": 1', '"c": true')


def test_null_on_the_path_is_replaced_by_an_object() -> None:
    after = '{"features": {"cdi": true}}'
    assert edited('{"features": null}', ("features", "cdi"), value=True) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('{"runtimes": {"nvidia": 1, "x": 2}}', '{"runtimes": {"x": 2}}'),
        ('{"runtimes": {"x": 2, "nvidia": 1}}', '{"runtimes": {"x": 2}}'),
        ('{"runtimes": {"x": 2, "nvidia": 1, "y": 3}}', '{"runtimes": {"x": 2, "y": 3}}'),
        ('{"runtimes": {"nvidia": 1}, "a": 1}', '{"a": 1}'),
        ('{\n  "a": 1,\n  "runtimes": {\n    "nvidia": 1\n  }\n}\n', '{\n  "a": 1\n}\n'),
        ('{"runtimes": {"nvidia": 1}}', "{}"),
        ('{"runtimes": {}, "a": 1}', '{"runtimes": {}, "a": 1}'),
        ('{"a": 1}', '{"a": 1}'),
        ('{"runtimes": null}', '{"runtimes": null}'),
    ],
)
def test_a_member_is_removed_with_its_comma_and_empty_parents(text: str, after: str) -> None:
    assert edited(text, *REMOVE[0]) == after


NAMES = st.sampled_from(["a", "b", "ä", "runtimes", "features", 'q"'])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    document=st.dictionaries(NAMES.filter(lambda name: name != "runtimes"), VALUES, max_size=4),
    indent=st.sampled_from([None, 0, 1, 2, "\t"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    ascii_only=st.booleans(),
)
def test_adding_and_removing_a_member_restores_the_bytes(
    document: dict[str, object], indent: int | str | None, line_end: str, *, ascii_only: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    text = text.replace("\n", line_end)
    after = edited(text, *REGISTER[0])
    assert json.loads(after) == {**document, "runtimes": {"nvidia": ENTRY}}
    assert list(json.loads(after)) == [*document, "runtimes"]
    assert edited(after, *REGISTER[0]) == after
    assert edited(after, *REMOVE[0]) == text


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:/#a1 \n', max_size=40).map(str.encode))
def test_bytes_of_any_kind_are_edited_or_refused(data: bytes) -> None:
    message = ""
    after: bytes | None = b""
    try:
        after = json_file.edit(data, REGISTER, "daemon.json")
    except EngineConfigError as error:
        message = error.message
    assert message.startswith("daemon.json line ") or json.loads(after or b"")["runtimes"] == {
        "nvidia": ENTRY
    }
