# SPDX-License-Identifier: Apache-2.0
"""TOML files edited in place: the messages, and that no other byte changes."""

import datetime as dt
import math

import pytest

from nvct.config.tables import ABSENT, same
from nvct.config.toml_file import parse
from nvct.config.toml_source import Noted
from nvct.errors import EngineConfigError
from tests.support.toml import edit

PATH = "/etc/engine.toml"


# What is not TOML


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a = \n", "line 1, column 5: invalid value"),
        (b"a = 1\n[t\n", "line 2, column 3: expected ']' at the end of a table declaration"),
        (b"a = 1\nb\n", "line 2, column 2: expected '=' after a key in a key/value pair"),
        (b"a = 1\n# caf\xe9\n", "line 2 is not UTF-8"),
        (b"a = " + b"[" * 5000, "is not TOML"),
    ],
    ids=["value", "header", "pair", "latin-1", "deep"],
)
def test_malformed_toml_is_refused_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(EngineConfigError) as caught:
        parse(data, PATH)

    assert caught.value.message.startswith(f"{PATH} is not TOML")
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ['{{ template "base" . }}\n', "version = 2\n{{- if .X }}\na = 1\n{{ end }}\n"]
)
def test_a_go_template_is_distinguished_from_broken_toml(text: str) -> None:
    with pytest.raises(EngineConfigError, match="is a Go template"):
        parse(text.encode(), PATH)
    assert parse(b'format = "{{ .Names }}"\n', PATH) == {"format": "{{ .Names }}"}


@pytest.mark.parametrize(
    "text",
    [f"a = {'[' * 300}{']' * 300}\n[p]\n", "[[z]]\nk = 1\n[p]\n[[z]]\nk = 2\n"],
    ids=["deep", "array of tables in two places"],
)
def test_rare_forms_are_edited_as_well(text: str) -> None:
    assert edit(text, [(("p",), "b", 1)], PATH) == text.replace("[p]\n", "[p]\nb = 1\n")


def test_a_byte_order_mark_and_crlf_are_read_and_stay() -> None:
    text = "\ufeffa = 1\r\n"

    assert parse(text.encode(), PATH) == {"a": 1}
    assert edit(text, [((), "b", 2)]) == "\ufeffa = 1\r\nb = 2\r\n"


@pytest.mark.parametrize(
    ("text", "table", "key", "value", "message"),
    [
        ("a = 1\n", ("a",), "b", 2, "a is a value, not a table"),
        ("[[a]]\nb = 1\n", ("a",), "b", 2, "a is an array of tables, not a table"),
        ("[a]\nb = 1\n", (), "a", 2, "a is a table, not a value"),
        ("a = { b = 1 }\n", (), "a", 2, "a is a table, not a value"),
        ("a.b = 1\n", (), "a", 2, "a is a table, not a value"),
        ("a = { b = 1 }\n", ("a", "b"), "c", 2, "a.b is a value, not a table"),
        ("a = 1\n", (), "b", None, "TOML has no value such as None"),
    ],
)
def test_a_value_of_another_kind_is_not_replaced(
    text: str, table: tuple[str, ...], key: str, value: object, message: str
) -> None:
    with pytest.raises(EngineConfigError, match=message):
        edit(text, [(table, key, value)], PATH)


# Values


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (True, "true"),
        (1, "1"),
        (0.02, "0.02"),
        (math.inf, "inf"),
        ("/a b", '"/a b"'),
        ('a"\\\n\x00\U0001f600', '"a\\"\\\\\\n\\u0000\U0001f600"'),
        (["a", 1], '["a", 1]'),
        ([{"a": 1}], "[{ a = 1 }]"),
        (dt.date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_values_are_written_as_toml_has_them(value: object, written: str) -> None:
    text = edit("", [((), "key", value)])

    assert text == f"key = {written}\n"
    assert parse(text, PATH) == {"key": value}


EDITS = {
    "an equal value keeps its spelling": (
        "a = 0x10 # sixteen\nb = '''x'''\nc = [ 1,\n  2, ]\nd = 1_000.0\n",
        [((), "a", 16), ((), "b", "x"), ((), "c", [1, 2]), ((), "d", 1e3)],
        "a = 0x10 # sixteen\nb = '''x'''\nc = [ 1,\n  2, ]\nd = 1_000.0\n",
    ),
    "true is not one": ("a = 1\n", [((), "a", True)], "a = true\n"),
    "only the value is replaced": (
        '[t]\n  a   =  "old"   # why\n  b = 1\n',
        [(("t",), "a", "new")],
        '[t]\n  a   =  "new"   # why\n  b = 1\n',
    ),
    "strings get the quotes that the file has": (
        "a = 'x'\n",
        [((), "b", "y"), ((), "c", "it's")],
        "a = 'x'\nb = 'y'\nc = \"it's\"\n",
    ),
    "a different list is rewritten": (
        "k = [1, 2] # why\n", [((), "k", [2, 1])], "k = [2, 1] # why\n",
    ),
    "a key comes after the last one of its table": (
        "[a]\n  x = 1\n  # more\n\n[b]\ny = 1\n",
        [(("a",), "z", 2)],
        "[a]\n  x = 1\n  z = 2\n  # more\n\n[b]\ny = 1\n",
    ),
    "a root key comes before the first table": (
        "# about this file\n\n# about a\n[a]\nx = 1\n",
        [((), "z", 2)],
        "# about this file\n\nz = 2\n\n# about a\n[a]\nx = 1\n",
    ),
    "the first comment of a file stays first": (
        "# about this file\n[a.b]\nx = 1\n",
        [(("a",), "z", 2), ((), "y", 1)],
        "# about this file\ny = 1\n\n[a]\nz = 2\n[a.b]\nx = 1\n",
    ),
    "a dense file gets no blank lines": (
        "[a.x]\nk = 1\n# of b\n[b]\nk = 1\n",
        [(("a", "y"), "k", 2)],
        "[a.x]\nk = 1\n[a.y]\nk = 2\n# of b\n[b]\nk = 1\n",
    ),
    "dotted keys stay dotted keys": (
        "[t]\na.'x.y'.b = 1\nz = 2\n",
        [(("t", "a", "x.y", "c"), "d", 3)],
        "[t]\na.'x.y'.b = 1\na.'x.y'.c.d = 3\nz = 2\n",
    ),
    "inline tables stay inline tables": (
        "t = { a = { b = 1 }, c = {} } # why\n",
        [(("t", "a"), "n", 2), (("t", "c", "d"), "e", "x"), (("t",), "f", {})],
        't = { a = { b = 1, n = 2 }, c = { d = { e = "x" } }, f = {} } # why\n',
    ),
    "an empty table on request": ("[a]\nx = 1\n", [((), "b", {})], "[a]\nx = 1\n\n[b]\n"),
    "an empty table that is there": ("[b]\n", [((), "b", {})], "[b]\n"),
    "no line end at the end": ("a = 1", [((), "b", 2)], "a = 1\nb = 2"),
    "no line end at the end, CRLF": (
        "a = 1\r\nb = 1", [(("t",), "c", 2)], "a = 1\r\nb = 1\r\n\r\n[t]\r\nc = 2",
    ),
    "a header goes with its last key": (
        "[a]\nx = 1\n\n[b]\ny = 1\n", [(("b",), "y", ABSENT)], "[a]\nx = 1\n",
    ),
    "a comment stays behind the last key": (
        "[a]\nx = 1\n# kept\n", [(("a",), "x", ABSENT)], "[a]\n# kept\n",
    ),
    "a table goes with all its parts": (
        "[a.x]\nk = 1\n[b]\nk = 1\n[a.x.y]\nk = 1\n[[a.x.z]]\nk = 1\n[a.w]\nk = 1\n",
        [(("a",), "x", ABSENT)],
        "[b]\nk = 1\n[a.w]\nk = 1\n",
    ),
    "a missing key is removed": (
        "a = { b = 1 } # c\n",
        [((), "z", ABSENT), (("a",), "z", ABSENT), (("y",), "z", ABSENT)],
        "a = { b = 1 } # c\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "changes", "after"), EDITS.values(), ids=EDITS.keys())
def test_an_edit_changes_what_it_says_and_keeps_the_style_of_the_file(
    text: str, changes: list[tuple[tuple[str, ...], str, object]], after: str
) -> None:
    assert edit(text, changes) == after


# Places


def test_multi_line_strings_and_brackets_in_strings_are_no_statements() -> None:
    text = 'a = """\n[t]\nx = 1\n"" \\\n"""""\nb = [ "]", \'}\', # ]\n  "#" ]\n[t]\ny = \'\'\'\n#\'\'\'\n'

    assert edit(text, [(("t",), "z", 1)]) == text + "z = 1\n"


def test_a_noted_value_gets_its_comment_once() -> None:
    change = [(("t",), "a", Noted("x", "because"))]

    text = edit("", change)

    assert text == '[t]\na = "x"  # because\n'
    assert edit(text, change) == text


# Arrays


@pytest.mark.parametrize(
    ("before", "after", "back"),
    [
        ("[]", '["n"]', "[]"),
        ('["a"]', '["a", "n"]', '["a"]'),
        ('["a", ]', '["a", "n", ]', '["a", ]'),
        (
            '[\n  "a", # first\n  "b", # last\n]',
            '[\n  "a", # first\n  "b", # last\n  "n",\n]',
            '[\n  "a", # first\n  "b", # last\n]',
        ),
        (
            '[\n  "a",\n  "b" # last\n]',
            '[\n  "a",\n  "b", # last\n  "n"\n]',
            '[\n  "a",\n  "b", # last\n]',
        ),
        ('[ "a",\n  "b"\n]', '[ "a",\n  "b",\n  "n"\n]', '[ "a",\n  "b",\n]'),
        ('[\r\n\t"a",\r\n]', '[\r\n\t"a",\r\n\t"n",\r\n]', '[\r\n\t"a",\r\n]'),
    ],
)
def test_elements_are_added_and_removed_in_the_style_of_the_others(
    before: str, after: str, back: str
) -> None:
    end = "\r\n" if "\r\n" in before else "\n"
    first, last = f"x = 1{end}k = ", f" # why{end}y = 2{end}"
    old = parse(first + before + last, PATH)["k"]
    assert isinstance(old, list)

    added = edit(first + before + last, [((), "k", [*old, "n"])])

    assert added == first + after + last
    assert edit(added, [((), "k", old)]) == first + back + last


def test_the_right_element_goes() -> None:
    text = 'k = ["a", "b", "c"]\nl = [\n  1, # one\n  2, # two\n  3, # three\n]\n'

    assert edit(text, [((), "k", ["b", "c"]), ((), "l", [1, 3])]) == (
        'k = ["b", "c"]\nl = [\n  1, # one\n  3, # three\n]\n'
    )
    assert edit(text, [((), "k", ["a", "c"]), ((), "l", [2])]).startswith('k = ["a", "c"]\n')
    assert edit(text, [((), "k", [])]).startswith("k = []\n")


# Forms that tomlkit itself does not write as they were


@pytest.mark.parametrize(
    "text",
    [
        "  [p.r.one]\n    t = 1\n  [p.r.two]\n    t = 1\n",
        "[p]\n  [p.q]\n  [p.q.r.one]\n    t = 1\n\n  [p.q.r.two]\n    t = 1\n",
        "[[z]]\nk = 1\n[[z]]\nk = 2\n[p.s]\nt = 1\n",
        "[a.x]\nk = 1\n[b]\nk = 1\n[a]\nk = 1\n[a.y]\nk = 1\n",
        "a.b.c = 1\nd = 1\na.b.e = 1\n[f]\n",
        "[t]\na = {b.c = 1,d=2}\n[u]\n\n\n",
        "k = [ 1,2 ,\n 3 ]\n\n   \n[t]   # why\n",
    ],
)
def test_a_change_keeps_every_other_line(text: str) -> None:
    after = edit(text, [(("p", "new"), "k", "v"), ((), "root_key", 1)])

    remaining = after.splitlines()
    for line in text.splitlines():
        assert line in remaining
        remaining.remove(line)
    assert [line for line in remaining if line.strip()] != []


# Taking out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a = 1\n",
        "a = 1",
        "# only a comment\n",
        "a = 1\r\n\r\n[b]\r\nc = 1\r\n",
        "[p.x]\nk = 1\n\n[p.y]\nk = 1\n",
        "[p.x]\nk = 1\n[q]\nk = 1\n",
        "p.x.k = 1\nz = 2\n",
        "p = { x = { k = 1 } }\n",
        "[p]\n\n# of q\n[q]\n",
        "\ufeff[q]\na = 1\n",
    ],
)
def test_an_added_key_can_be_removed_again(text: str) -> None:
    table = {"k": "v", "options": {"flag": True, "list": [1]}}

    after = edit(text, [(("p",), "new", table), ((), "root_key", 1)])

    assert after != text
    assert edit(after, [(("p",), "new", ABSENT), ((), "root_key", ABSENT)]) == text


def test_values_are_the_same_only_with_their_type() -> None:
    assert same({"a": [math.nan]}, {"a": [math.nan]})
    assert not same(1, 1.0)
    assert not same([1], [True])
    assert not same([1], [1, 2])
    assert not same({"a": 1}, {"b": 1})
