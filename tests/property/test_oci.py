# SPDX-License-Identifier: Apache-2.0
"""Edits of JSON text equal edits of the parsed document, and change no other byte."""

from __future__ import annotations

import copy
import json
import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvct.errors import DocumentError
from nvct.oci import argv, document, jsontext
from nvct.oci.document import ELEMENTS, Document
from tests.support import launcher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    Path_ = tuple[str, ...]
    Edit = tuple[str, Path_, list[Any]]

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines

WANT: document.Schema = {
    "list": ELEMENTS,
    "value": None,
    "a": {"list": ELEMENTS, "value": None, "deep": {"list": ELEMENTS, "value": None}},
    "open": {},
}
ARRAYS = (("list",), ("a", "list"), ("a", "deep", "list"))
VALUES = (("value",), ("a", "value"), ("a", "deep", "value"), ("open", "x"), ("open", "é\n"))

KNOWN = {"list", "value", "a", "deep", "open"}
# A known name in another case is refused: tests/hostile/test_config_json.py.
member_names = st.text(max_size=4).filter(lambda k: k in KNOWN or k.casefold() not in KNOWN)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)  # fmt: skip
plain = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(member_names, inner, max_size=3),
    max_leaves=8,
)
whole = st.recursive(  # what jsontext.dumps writes
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(member_names, inner, max_size=3),
    max_leaves=6,
)


def objects(
    optional_members: dict[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    """Objects that hold some of the wanted members between others, in any order."""
    other_members = st.dictionaries(
        member_names.filter(lambda k: k not in WANT), plain, max_size=3
    )
    some = st.fixed_dictionaries({}, optional=optional_members)
    both = st.builds(lambda a, b: [*a.items(), *b.items()], other_members, some)
    return both.flatmap(st.permutations).map(dict)


arrays = st.none() | st.lists(plain, max_size=4)
deep = st.none() | objects({"list": arrays, "value": plain})
a = st.none() | objects({"list": arrays, "value": plain, "deep": deep})
documents = objects(
    {"list": arrays, "value": plain, "a": a, "open": st.none() | objects({"x": plain})}
)
odd_documents = objects({"list": plain, "value": plain, "a": plain | a, "open": plain})
edits = st.lists(
    st.tuples(
        st.sampled_from(("append", "rewrite")),
        st.sampled_from(ARRAYS),
        st.lists(whole, max_size=3),
    )
    | st.tuples(st.just("put"), st.sampled_from(VALUES), st.lists(whole, min_size=1, max_size=1)),
    max_size=8,
)


def written(value: Any, random: Random) -> str:
    """Write JSON in unusual forms: all kinds of white space, random escapes."""

    def space() -> str:
        return random.choice(("", "", "", " ", "\n", "\t \r\n"))

    def text(value: str) -> str:
        return json.dumps(value, ensure_ascii=random.random() < 0.5)

    if isinstance(value, dict):
        inner = ",".join(
            f"{space()}{text(k)}{space()}:{space()}{written(v, random)}{space()}"
            for k, v in value.items()
        )
        return "{" + (inner or space()) + "}"
    if isinstance(value, list):
        inner = ",".join(f"{space()}{written(v, random)}{space()}" for v in value)
        return "[" + (inner or space()) + "]"
    return text(value) if isinstance(value, str) else json.dumps(value)


def oracle(document: dict[str, Any], todo: list[Edit]) -> dict[str, Any]:
    """Edit a parsed document; raise TypeError where something has another type."""
    result = copy.deepcopy(document)
    arrays: dict[Path_, tuple[list[Any] | None, list[Any]]] = {}
    puts: dict[Path_, Any] = {}
    for verb, path, values in todo:
        old, added = arrays.get(path, (None, []))
        if verb == "put":
            puts[path] = values[0]
        elif verb == "rewrite":
            arrays[path] = (values, added)
        elif values:
            arrays[path] = (old, added + values)
    for path, (rewritten, added) in arrays.items():
        parent = holder(result, path)
        there = parent.get(path[-1])
        if there is None:
            there = []
        if not isinstance(there, list):
            raise TypeError(path)
        parent[path[-1]] = (there if rewritten is None else rewritten) + added
    for path, value in puts.items():
        holder(result, path)[path[-1]] = value
    return result


def holder(document: dict[str, Any], path: Path_) -> dict[str, Any]:
    for key in path[:-1]:
        if document.get(key) is None:
            document[key] = {}
        document = document[key]
        if not isinstance(document, dict):
            raise TypeError(path)
    return document


def edited(text: str, todo: list[Edit]) -> Document:
    document = Document(text, WANT, "x")
    for verb, path, values in todo:
        texts = [jsontext.dumps(v) for v in values]
        if verb == "put":
            document.put(path, texts[0])
        else:
            getattr(document, verb)(path, texts)
    return document


@relaxed
@given(documents, edits, st.randoms(use_true_random=False))
def test_edits_of_text_equal_edits_of_the_parsed_document(
    document: dict[str, Any], todo: list[Edit], random: Random
) -> None:
    edited_document = edited(written(document, random), todo)
    assert json.loads(edited_document.render()) == oracle(document, todo)
    assert edited_document.render() == edited_document.render()


@relaxed
@given(odd_documents, edits, st.randoms(use_true_random=False))
def test_any_document_is_edited_correctly_or_refused(
    document: dict[str, Any], todo: list[Edit], random: Random
) -> None:
    text = written(document, random)
    try:
        expected = oracle(document, todo)
    except TypeError:
        with pytest.raises(DocumentError):
            edited(text, todo).render()
    else:
        assert json.loads(edited(text, todo).render()) == expected


@relaxed
@given(documents, edits, st.randoms(use_true_random=False))
def test_bytes_outside_the_edits_never_change(
    document: dict[str, Any], todo: list[Edit], random: Random
) -> None:
    touched = {path[0] for _, path, _ in todo}
    members = [(key, written({key: value}, random)[1:-1]) for key, value in document.items()]
    text = "{" + ",".join(member for _, member in members) + "}"
    result = edited(text, todo).render()
    at = 0
    for key, member in members:
        if key not in touched:
            member = member.rstrip()  # the inserted text follows the value
            at = result.index(member, at) + len(member)
    assert result[at:].endswith("}")


@relaxed
@given(documents, st.randoms(use_true_random=False))
def test_an_unedited_document_is_rendered_byte_for_byte(
    document: dict[str, Any], random: Random
) -> None:
    text = written(document, random)
    edited_document = Document(text, WANT, "x")
    assert not edited_document.changed
    assert edited_document.render() == text


@relaxed
@given(st.text(alphabet='{}[],:" \\ul01ena-\n\x00é', max_size=30))
def test_any_text_raises_only_a_document_error(text: str) -> None:
    try:
        expected = json.loads(text, parse_constant=refuse)
    except ValueError:
        with pytest.raises(DocumentError):
            jsontext.parse(text, "x")
        with pytest.raises(DocumentError):
            Document(text, WANT, "x")
    else:
        assert jsontext.parse(text, "x") == expected


@relaxed
@given(documents, st.randoms(use_true_random=False), st.data())
def test_a_truncated_document_is_refused(
    document: dict[str, Any], random: Random, data: st.DataObject
) -> None:
    text = written(document, random)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(DocumentError):
        Document(text[:cut], WANT, "x")


def refuse(name: str) -> None:
    raise ValueError(name)


@relaxed
@given(whole)
def test_dumped_data_is_parsed_unchanged(value: Any) -> None:
    assert json.loads(jsontext.dumps(value)) == value
    assert jsontext.parse(jsontext.dumps(value), "x") == value


words = st.sampled_from(
    ["", "-", "--", "create", "run", "state", "exec", "id", "help", "features", "-b", "-f", "-bB",
     "-fc", "-b=B", "-f=c", "-bundle", "--bundle", "--bundle=B", "--bundle=", "--config", "--config=c",
     "--config=config.json", "--b", "--f=", "--root", "--root=r", "-root", "--log", "--log=l",
     "--log-format", "--debug", "--debug=0", "-debug", "--systemd-cgroup", "--version", "--version=F",
     "-v", "--help", "--help=false", "-h", "--pid-file", "--pid-file=p", "--no-pivot", "--nope",
     "--nope=1", "---debug", "--=x", "-=x", "--criu", "--rootless=true", "--console-socket",
     "--preserve-fds", "-d", "-bé", "--log-level", "--cgroup-manager", "-xb", "-b-f"]
) | st.text(alphabet="-=bfé /", max_size=4)  # fmt: skip
lines = st.lists(words, max_size=8)


@relaxed
@given(lines)
def test_every_value_of_a_parsed_command_line_occurs_in_it(args: list[str]) -> None:
    invocation = argv.parse(args)
    assert not invocation.command or invocation.command in args
    assert not invocation.bundle or any(arg.endswith(invocation.bundle) for arg in args)
    assert invocation.creates <= (invocation.command in ("create", "run"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launcher.shown(tmp_path_factory.mktemp("launcher"))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(st.lists(lines, min_size=4, max_size=4))
def test_the_launcher_reads_command_lines_as_python_does(
    shown: Path, command_lines: list[list[str]]
) -> None:
    for args in command_lines:
        invocation = argv.parse(args)
        result = subprocess.run([str(shown), *args], capture_output=True, text=True, check=True)
        fields = result.stdout.rstrip("\n").split("|")
        assert fields[0] == str(int(invocation.sure))
        if invocation.sure:
            expected = [
                invocation.command,
                invocation.bundle,
                invocation.config,
                int(invocation.version),
                int(invocation.help),
            ]
            assert fields[1:] == [str(value) for value in expected]
