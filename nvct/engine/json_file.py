# SPDX-License-Identifier: Apache-2.0
"""Edits the JSON configuration of an engine in place: every other byte stays.

Order, indentation, line ends, escapes and the spelling of numbers survive, because only edited
members are written: `json.dumps`, whatever its settings, reproduces only 13 of 28 real files.

Text that Go's decoder would refuse or read in a surprising way is refused with its line and
column: comments, trailing commas, text after the end, a byte order mark, a duplicate name on the
path of an edit. An empty file stands for an empty object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar

from nvct.config import spans
from nvct.config.spans import SPACE, Item, items
from nvct.config.tables import ABSENT, KeyEdit, Path, same
from nvct.errors import DocumentError, EngineConfigError
from nvct.oci import jsontext

Kind = TypeVar("Kind")

EMPTY = "{}\n"
HINT = "correct it by hand; nothing was changed"
BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
INDENT = "    "  # of a file that shows none, as the incumbent indents
REASONS = {
    "Extra data": "something follows the end of the object",
    "Expecting ':' delimiter": "a colon is missing",
    "Expecting ',' delimiter": "a comma is missing",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
}
"""Message of `json` → our message."""
KINDS = {
    dict: "an object", list: "an array", str: "a string", bool: "true or false",
    int: "a number", float: "a number", type(None): "null",
}  # fmt: skip


class Document:
    """A JSON object whose values are read by path."""

    __slots__ = ("data", "path", "root", "text")

    def __init__(self, text: str, path: str) -> None:
        self.text = text
        self.path = path
        start = spans.after_space(text, 0)
        try:
            jsontext.check_depth(text, path)
        except DocumentError as error:
            raise self.refusal(0, "it is nested too deeply") from error
        try:
            data = json.loads(text, parse_constant=self._refuse_constant)
        except json.JSONDecodeError as error:
            raise self.refusal(*_reason(text, error)) from error
        if not isinstance(data, dict):
            raise self.refusal(start, f"{kind(data)}, not an object")
        self.data: dict[str, object] = data
        self.root = Item((), start, start, start, len(text.rstrip(SPACE)))

    def refusal(self, at: int, problem: str) -> EngineConfigError:
        """Return the error for a problem at a position in the text."""
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        return EngineConfigError(f"{self.path} line {line}, column {column}: {problem}", hint=HINT)

    def find(self, path: Path) -> Item | None:
        """Return the item at a path, or None; EngineConfigError if its parent is not an object."""
        item = self.root
        for depth, name in enumerate(path):
            if self.text[item.value] != "{":
                value = self.value(item)
                if value is None:  # to Go, null is the same as no member
                    return None
                where = ".".join(path[:depth])
                raise self.refusal(item.value, f"{where} is {kind(value)}, not an object")
            matches = [each for each in items(self.text, item.value) if each.path == (name,)]
            if len(matches) > 1:
                raise self.refusal(matches[1].start, f"duplicate key {name}")
            if not matches:
                return None
            item = matches[0]
        return item

    def value(self, item: Item) -> object:
        """Return the parsed value of an item."""
        return json.loads(self.text[item.value : item.end])

    def get(self, path: Path, expected: type[Kind]) -> Kind | None:
        """Return the value at a path, None if none or null; EngineConfigError for another type."""
        item = self.find(path)
        data = self.value(item) if item else None
        if item is None or data is None:
            return None
        if type(data) is not expected:
            text = f"{'.'.join(path)} is {kind(data)}, not {KINDS[expected]}"
            raise self.refusal(item.value, text)
        return data

    def _refuse_constant(self, name: str) -> None:
        tokens = (match for match in spans.TOKEN.finditer(self.text) if match[0][0] != '"')
        match = next(match for match in tokens if name in match[0])
        raise self.refusal(match.start() + match[0].index(name), f"{name} is not JSON")


def kind(data: object) -> str:
    """Return the name of a value's JSON type, with its article."""
    return KINDS[type(data)]


def parse(data: bytes | None, path: str) -> Document:
    """Parse a file; None and white space mean {}, as in Docker. Raises EngineConfigError."""
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


def edit(data: bytes | None, edits: Iterable[KeyEdit], path: str) -> bytes | None:
    """Return a file with members set, or removed if ABSENT; None if there was and is no file.

    A member that already has its value is not changed. Missing objects on the path are created. A
    new member is the last one of its object, in the style of the others. Raises EngineConfigError
    if the file cannot be edited, with line and column.
    """
    document = start = parse(data, path)
    for where, value in edits:
        gone = value is ABSENT
        text = _without(document, where) if gone else _with(document, where, value)
        document = Document(text, path)
    return data if document.text == start.text else document.text.encode()


def _with(document: Document, where: Path, value: object) -> str:
    text = document.text
    has_lines = "\n" in text[document.root.value : document.root.end]
    old = document.find(where)
    if old is not None:
        if same(document.value(old), value):
            return text
        indent = _indent_at(text, old.value) if has_lines else None
        return text[: old.value] + _render(document, value, indent) + text[old.end :]
    depth = len(where) - 1
    while (parent := document.find(where[:depth])) is None:
        depth -= 1
    for name in reversed(where[depth + 1 :]):
        value = {name: value}
    if text[parent.value] != "{":  # null
        return _with(document, where[:depth], {where[depth]: value})
    members = items(text, parent.value)
    if members:
        return _appended(document, members, parent.value, where[depth], value)
    is_on_lines = has_lines or parent is document.root
    indent = _indent_at(text, parent.value) if is_on_lines else None
    filled = _render(document, {where[depth]: value}, indent)
    return text[: parent.value] + filled + text[parent.end :]


def _appended(
    document: Document, members: list[Item], start: int, name: str, value: object
) -> str:
    """Return the text with a member after the last one of an object, in its style."""
    text, last = document.text, members[-1]
    separator = text[members[-2].end if len(members) > 1 else start + 1 : last.start]
    colon = text[last.name_end : last.value]
    if "\n" in colon:
        colon = ": "
    indent = None
    if "\n" not in separator:
        comma = separator if len(members) > 1 else "," + (" " if " " in separator + colon else "")
    else:
        line = separator[separator.rindex("\n") + 1 :]  # with the comma, if commas start lines
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        comma = ("" if "," in line else ",") + _line_end(text) + line
    added = comma + json.dumps(name, ensure_ascii=False) + colon
    added += _render(document, value, indent, colon)
    return text[: last.end] + added + text[last.end :]


def _without(document: Document, where: Path) -> str:
    """Return the text without a member, and without the objects that its removal leaves empty."""
    if document.find(where) is None:
        return document.text
    while True:
        parent = document.find(where[:-1]) or document.root
        members = items(document.text, parent.value)
        if len(members) > 1 or len(where) == 1:
            break
        where = where[:-1]
    number = [member.path for member in members].index(where[-1:])
    return spans.without(document.text, parent.value, members, number)


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
    members = items(document.text, document.root.value)
    if not members or "\n" not in document.text[document.root.value : members[0].start]:
        return INDENT
    return _indent_at(document.text, members[0].start) or INDENT


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _reason(text: str, error: json.JSONDecodeError) -> tuple[int, str]:
    """Return the position of an error, and what is wrong there."""
    at = error.pos
    if text[at : at + 1] == "," and text[at + 1 :].lstrip(SPACE)[:1] in ("}", "]"):
        at = spans.after_space(text, at + 1)
    if text.startswith(("//", "/*", "#"), at):
        return at, "a comment, which JSON does not have"
    if text[at : at + 1] in ("}", "]") and text[:at].rstrip(SPACE).endswith(","):
        return at, "a comma with nothing after it"
    if text[at : at + 1] == "'":
        return at, "single quotes, where JSON has double ones"
    if at >= len(text):
        return at, "the file ends too early"
    plain = (error.msg[:1].lower() + error.msg[1:]).removesuffix(" at")
    return at, REASONS.get(error.msg, plain)
