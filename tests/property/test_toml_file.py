# SPDX-License-Identifier: Apache-2.0
"""Edits of any TOML file, and their reversal."""

from collections.abc import Iterator

from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvct.config.tables import ABSENT, find
from nvct.config.toml_file import parse
from nvct.config.toml_source import key_text as quoted
from nvct.errors import EngineConfigError
from tests.support.toml import edit

NAMES = ("a", "b", "x.y", "c-1", 'q"t')
SCALARS = (
    "1", "true", "0.5", '"s"', "'l]t'", '"""m\n[a]\nb = 1\n"""', "'''\n#'''", "1979-05-27 07:32:00",
    "[]", "[1, 2]", '[\n  "x", # ]\n  "y",\n]', "[ [1],\n[2] ]", '[{ a = "}" }]',
)  # fmt: skip
BETWEEN = ("", "\n", "# [a]\n", "  # b = 1\n\n", "\n\n")
STYLES = ("header", "dotted", "inline")


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Make a file: tables as headers, dotted keys and inline tables, with comments in between."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = list(_table(draw, (), draw(st.integers(0, 3)), "root"))
    text = "".join(lines)
    if draw(st.booleans()):
        text = text.rstrip("\n")
    mark = "\ufeff" if draw(st.booleans()) else ""
    return mark + text.replace("\n", end)


def _table(draw: st.DrawFn, path: tuple[str, ...], depth: int, style: str) -> Iterator[str]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    kinds = {name: draw(st.sampled_from(("value", *STYLES))) for name in names}
    indent = draw(st.sampled_from(["", "  ", "\t"]))
    if style == "header":
        yield f"{indent}[{'.'.join(quoted(name) for name in path)}]\n"
    for name in [name for name in names if kinds[name] in ("value", "inline", "dotted")]:
        yield draw(st.sampled_from(BETWEEN))
        yield f"{indent}{_pair(draw, name, kinds[name], depth)}\n"
    yield draw(st.sampled_from(BETWEEN))
    for name in [name for name in names if kinds[name] == "header" and depth]:
        yield from _table(draw, (*path, name), depth - 1, "header")


def _pair(draw: st.DrawFn, name: str, kind: str, depth: int) -> str:
    if kind == "value" or not depth:
        after = draw(st.sampled_from(["", " # why"]))
        return f"{quoted(name)} = {draw(st.sampled_from(SCALARS))}{after}"
    if kind == "dotted":
        more = draw(st.sampled_from(NAMES))
        return f"{quoted(name)}.{_pair(draw, more, 'value', 0)}"
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    inner = (f"{quoted(n)} = {draw(st.sampled_from(SCALARS[:5]))}" for n in names)
    return f"{quoted(name)} = {{ {', '.join(inner)} }}"


PATHS = st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)
ITEMS = st.recursive(
    st.sampled_from([1, True, "s", ["x"], 0.5]),
    lambda inner: st.dictionaries(st.sampled_from(("new", *NAMES)), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(texts(), PATHS, ITEMS)
def test_adding_and_removing_a_key_restores_the_file(
    text: str, table: tuple[str, ...], item: object
) -> None:
    before = parse(text, "x")
    try:
        after = edit(text, [(table, "new", item)], "x")
    except EngineConfigError as error:
        if "not a table" not in error.message:
            raise
        return
    if item != {}:
        assert find(parse(after, "x"), (*table, "new")) == item
    assert edit(after, [(table, "new", item)], "x") == after
    comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in after.splitlines() if line.lstrip().startswith("#")] == comments
    restored = edit(after, [(table, "new", ABSENT)], "x")
    assert _without_empty(parse(restored, "x")) == _without_empty(before)


@settings(max_examples=100, deadline=None)
@given(texts(), PATHS, st.sampled_from(NAMES), ITEMS)
@example("a = { a = \"s\", b = 1 }\nb = 'l]t'\n", (), "a", {"a": ["x"]})
def test_a_change_of_any_key_is_made_or_refused_with_a_reason(
    text: str, table: tuple[str, ...], name: str, item: object
) -> None:
    try:
        after = edit(text, [(table, name, item)], "x")
    except EngineConfigError as error:
        # An empty table says nothing, so that it cannot take the place of another value.
        if "not a" not in error.message and item != {}:
            raise
        return
    assert edit(after, [(table, name, item)], "x") == after


@settings(max_examples=100, deadline=None)
@given(texts(), PATHS, st.sampled_from(NAMES))
@example("a = 1\n", ("a",), "a")
def test_any_key_can_be_removed(text: str, table: tuple[str, ...], name: str) -> None:
    after = edit(text, [(table, name, ABSENT)], "x")

    assert find(parse(after, "x"), (*table, name)) is ABSENT
    assert edit(after, [(table, name, ABSENT)], "x") == after


def _without_empty(item: object) -> object:
    if not isinstance(item, dict):
        return item
    inner = {name: _without_empty(value) for name, value in item.items()}
    return {name: value for name, value in inner.items() if value != {}}
