# SPDX-License-Identifier: Apache-2.0
"""Edits the JSON configuration of an engine in place: every other byte stays.

Order, indentation, line ends, escapes and the spelling of numbers survive because they are not
written again: whatever its settings, `json` gives back the bytes of 13 of 28 real files only.

Text that Go's decoder would refuse or read in a surprising way is refused with its line and
column: comments, trailing commas, text after the end, a byte order mark, a duplicate name on the
path of an edit. An empty file stands for an empty object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from nvct.engine.model import Absent
from nvct.errors import EngineConfigError

Path: TypeAlias = tuple[str, ...]
Edit: TypeAlias = tuple[Path, object]
Kind = TypeVar("Kind")

SPACE = " \t\r\n"
EMPTY = "{}\n"
HINT = "correct it by hand; nothing was changed"
BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
INDENT = "    "
"""Of a file that shows none, as the incumbent indents."""
KINDS = {
    dict: "an object", list: "an array", str: "a string", bool: "true or false",
    int: "a number", float: "a number", type(None): "null",
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Value:
    """One value, text[start:end]; `members` of an object, None for another value."""

    start: int
    end: int
    data: object
    members: list[Member] | None = None


@dataclass(slots=True, kw_only=True)
class Member:
    """One member of an object; its quoted name is text[start:end]."""

    name: str
    start: int
    end: int
    value: Value


class Document:
    """A JSON object that can be read by path; `edit` changes one."""

    __slots__ = ("path", "root", "text")

    def __init__(self, text: str, path: str) -> None:
        """Parse the text.

        Raises:
            EngineConfigError: it is no JSON object.
        """
        self.text = text
        self.path = path
        try:
            self.root = self._value(self._skip(0))
        except RecursionError as error:
            raise self.refusal(0, "it is nested too deeply") from error
        end = self._skip(self.root.end)
        if end != len(text):
            raise self.refusal(end, _reason(text, end, "something follows the end of the object"))
        if self.root.members is None:
            raise self.refusal(self.root.start, f"{kind(self.root.data)}, not an object")

    def refusal(self, at: int, problem: str) -> EngineConfigError:
        """Return the error for a position in the text."""
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return EngineConfigError(f"{self.path} line {line}, column {column}: {problem}", hint=HINT)

    def find(self, path: Path) -> Value | None:
        """Return the value at a path, None if there is none.

        Raises:
            EngineConfigError: a value on the path is no object, or a name is duplicate.
        """
        value = self.root
        for depth, name in enumerate(path):
            if value.members is None:
                if value.data is None:  # to Go, null is the same as no member
                    return None
                where = ".".join(path[:depth])
                raise self.refusal(value.start, f"{where} is {kind(value.data)}, not an object")
            matches = [member for member in value.members if member.name == name]
            if len(matches) > 1:
                raise self.refusal(matches[1].start, f"duplicate key {name}")
            if not matches:
                return None
            value = matches[0].value
        return value

    def get(self, path: Path, expected: type[Kind]) -> Kind | None:
        """Return the data at a path, None if there is none or null.

        Raises:
            EngineConfigError: the data is of another kind, or as `find`.
        """
        value = self.find(path)
        if value is None or value.data is None:
            return None
        if type(value.data) is not expected:
            text = f"{'.'.join(path)} is {kind(value.data)}, not {KINDS[expected]}"
            raise self.refusal(value.start, text)
        return value.data

    def _skip(self, at: int) -> int:
        text, size = self.text, len(self.text)
        while at < size and text[at] in SPACE:
            at += 1
        return at

    def _value(self, at: int) -> Value:
        if self.text[at : at + 1] == "{":
            return self._object(at)
        try:
            data, end = _DECODER.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            raise self.refusal(error.pos, _reason(self.text, error.pos, _plain(error))) from error
        except ValueError as error:  # a constant that JSON does not have
            raise self.refusal(at, str(error)) from error
        return Value(start=at, end=end, data=data)

    def _object(self, start: int) -> Value:
        text = self.text
        members: list[Member] = []
        at = self._skip(start + 1)
        if text[at : at + 1] == "}":
            return Value(start=start, end=at + 1, data={}, members=members)
        while True:
            if text[at : at + 1] != '"':
                raise self.refusal(at, _reason(text, at, "a name in double quotes is missing"))
            name = self._value(at)
            colon = self._skip(name.end)
            if text[colon : colon + 1] != ":":
                raise self.refusal(colon, _reason(text, colon, "a colon is missing"))
            value = self._value(self._skip(colon + 1))
            members.append(Member(name=str(name.data), start=at, end=name.end, value=value))
            at = self._skip(value.end)
            if text[at : at + 1] == "}":
                data = {member.name: member.value.data for member in members}
                return Value(start=start, end=at + 1, data=data, members=members)
            if text[at : at + 1] != ",":
                raise self.refusal(at, _reason(text, at, "a comma is missing"))
            at = self._skip(at + 1)


def kind(data: object) -> str:
    """Return what JSON calls a value."""
    return KINDS[type(data)]


def parse(data: bytes | None, path: str) -> Document:
    """Parse a file; None and a file of white space are an empty object, as in Docker.

    Raises:
        EngineConfigError: with line and column.
    """
    data = data or b""
    if data.startswith(BYTE_ORDER_MARKS):
        text = f"{path} line 1, column 1: a byte order mark"
        raise EngineConfigError(text, hint="save it as UTF-8 without one; nothing was changed")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        at = f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
        raise EngineConfigError(f"{path} {at}: not UTF-8", hint=HINT) from error
    return Document(text if text.strip(SPACE) else EMPTY, path)


def edit(data: bytes | None, edits: Iterable[Edit], path: str) -> bytes | None:
    """Return a file with members added, replaced or, for ABSENT, removed; None stays no file.

    A member that already has its value is not changed. Missing objects on the path are created. A
    new member is the last one of its object, in the style of the others.

    Raises:
        EngineConfigError: the file cannot be edited, with line and column.
    """
    document = start = parse(data, path)
    for where, value in edits:
        if isinstance(value, Absent):
            document = Document(_without(document, where), path)
        else:
            document = Document(_with(document, where, value), path)
    return data if document.text == start.text else document.text.encode()


def _with(document: Document, where: Path, value: object) -> str:
    """Return the text with a value at a path."""
    text = document.text
    old = document.find(where)
    if old is not None:
        if _same(old.data, value):
            return text
        return text[: old.start] + _replaced(document, old, value) + text[old.end :]
    depth = len(where) - 1
    while (parent := document.find(where[:depth])) is None:
        depth -= 1
    for name in reversed(where[depth + 1 :]):
        value = {name: value}
    if parent.members is None:  # null
        return _with(document, where[:depth], {where[depth]: value})
    if parent.members:
        return _appended(document, parent.members, parent.start, where[depth], value)
    return _into_empty(document, parent, where[depth], value)


def _replaced(document: Document, old: Value, value: object) -> str:
    """Render a value that replaces another."""
    if "\n" in document.text[document.root.start : document.root.end]:
        return _render(document, value, _indent_at(document.text, old.start))
    return _render(document, value, None)


def _appended(
    document: Document, members: list[Member], start: int, name: str, value: object
) -> str:
    """Return the text with a member after the last one of an object, in its style."""
    text, last = document.text, members[-1]
    separator = text[members[-2].value.end if len(members) > 1 else start + 1 : last.start]
    colon = text[last.end : last.value.start]
    if "\n" in colon:
        colon = ": "
    if "\n" not in separator:
        comma = separator if len(members) > 1 else "," + (" " if " " in separator + colon else "")
        added = comma + json.dumps(name, ensure_ascii=False) + colon
        added += _render(document, value, None, colon)
    else:
        line = separator[separator.rindex("\n") + 1 :]  # with the comma, if commas start lines
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        comma = "" if "," in line else ","
        added = comma + _line_end(text) + line + json.dumps(name, ensure_ascii=False) + colon
        added += _render(document, value, indent, colon)
    return text[: last.value.end] + added + text[last.value.end :]


def _into_empty(document: Document, parent: Value, name: str, value: object) -> str:
    """Return the text with the first member of an object."""
    text = document.text
    body = text[document.root.start : document.root.end]
    if parent is document.root or "\n" in body:
        filled = _render(document, {name: value}, _indent_at(text, parent.start))
    else:
        filled = _render(document, {name: value}, None)
    return text[: parent.start] + filled + text[parent.end :]


def _without(document: Document, where: Path) -> str:
    """Return the text without a member, and without objects that become empty by that."""
    if document.find(where) is None:
        return document.text
    parent = document.find(where[:-1])
    while parent is not None and len(parent.members or ()) == 1 and len(where) > 1:
        where = where[:-1]
        parent = document.find(where[:-1])
    members = (parent.members if parent else None) or []
    at = next(i for i, member in enumerate(members) if member.name == where[-1])
    start, end = members[at].start, members[at].value.end
    if at > 0:  # with the comma before it
        start = members[at - 1].value.end
    elif len(members) > 1:  # up to the next name
        end = members[1].start
    elif parent is not None:
        start, end = parent.start + 1, parent.end - 1
    return document.text[:start] + document.text[end:]


def _render(document: Document, value: object, indent: str | None, colon: str = ": ") -> str:
    """Render a value on one line (`indent` is None), or on several with this indentation."""
    if indent is None:
        comma = ", " if " " in colon else ","
        return json.dumps(value, ensure_ascii=False, separators=(comma, colon))
    unit = _unit(document)
    text = json.dumps(value, ensure_ascii=False, indent=unit, separators=(",", colon))
    return text.replace("\n", _line_end(document.text) + indent)


def _unit(document: Document) -> str:
    """Return the indentation of the first member of the document."""
    members = document.root.members
    if not members or "\n" not in document.text[document.root.start : members[0].start]:
        return INDENT
    return _indent_at(document.text, members[0].start) or INDENT


def _indent_at(text: str, at: int) -> str:
    """Return the white space at the start of the line of a position."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _same(first: object, second: object) -> bool:
    """Report whether two values are the same JSON: True is not 1; the order does not matter."""
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _reason(text: str, at: int, default: str) -> str:
    """Return the reason of an error if it is one of the usual ones, else `otherwise`."""
    if text.startswith(("//", "/*", "#"), at):
        return "a comment, which JSON does not have"
    before = text[:at].rstrip(SPACE)
    if text[at : at + 1] in ("}", "]") and before.endswith(","):
        return "a comma with nothing behind it"
    if text[at : at + 1] == "," and text[at + 1 :].lstrip(SPACE)[:1] in ("}", "]"):
        return "a comma with nothing behind it"
    if text[at : at + 1] == "'":
        return "single quotes, where JSON has double ones"
    return "the file ends too early" if at >= len(text) else default


def _plain(error: json.JSONDecodeError) -> str:
    return (error.msg[:1].lower() + error.msg[1:]).removesuffix(" at")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
