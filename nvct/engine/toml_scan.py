# SPDX-License-Identifier: Apache-2.0
"""Where the statements of a TOML text lie, so that one can be changed and no other byte is.

Contract: the text was accepted by a TOML parser before; nothing here checks it a second time.
Offsets are of characters. A statement is a line, or the lines that its value takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Path: TypeAlias = tuple[str, ...]

_SPACE = re.compile(r"[ \t]*")
_TO_LINE_END = re.compile(r"[^\n]*\n?")
_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")  # between the elements of an array
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
)
_BARE_VALUE = re.compile(r"[^,\]}#\r\n]*")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


class Member(NamedTuple):
    """A key and its value inside an inline table."""

    parts: Path
    start: int
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Where a value lies; kind is "scalar", "array" or "inline"."""

    kind: str
    start: int
    end: int
    items: tuple[Value, ...] = ()
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement; kind is "blank", "comment", "table", "tables" ([[...]]) or "pair".

    Attributes:
        kind: what it is.
        start: of its first line.
        end: behind its line end.
        indent: white space before it.
        parts: the key as it is written here, decoded: of a pair, relative to its table.
        raw: the same as written.
        table: the table that it stands in, or opens.
        value: of a pair.
    """

    kind: str
    start: int
    end: int
    indent: str = ""
    parts: Path = ()
    raw: Path = ()
    table: Path = ()
    value: Value | None = None

    @property
    def path(self) -> Path:
        """Where it stands in the document."""
        return self.table + self.parts if self.kind == "pair" else self.table


def statements(text: str) -> list[Statement]:
    """Return the statements of a text, in order; together they are all of it, less a BOM."""
    found: list[Statement] = []
    position = 1 if text.startswith("\ufeff") else 0
    table: Path = ()
    while position < len(text):
        statement = _statement(text, position, table)
        if statement.kind in ("table", "tables"):
            table = statement.table
        found.append(statement)
        position = statement.end
    return found


def _statement(text: str, start: int, table: Path) -> Statement:
    at = _end(_SPACE, text, start)
    indent = text[start:at]
    if at == len(text) or text[at] in "\r\n":
        end = _end(_TO_LINE_END, text, at)
        return Statement(kind="blank", start=start, end=end, table=table)
    if text[at] == "#":
        end = _end(_TO_LINE_END, text, at)
        return Statement(kind="comment", start=start, end=end, indent=indent, table=table)
    if text[at] == "[":
        kind, skip = ("tables", 2) if text.startswith("[[", at) else ("table", 1)
        parts, raw, at = _key(text, at + skip)
        end = _end(_TO_LINE_END, text, at)
        return Statement(
            kind=kind, start=start, end=end, indent=indent, parts=parts, raw=raw, table=parts
        )
    parts, raw, at = _key(text, at)
    value = _value(text, _end(_SPACE, text, at + 1))
    return Statement(
        kind="pair",
        start=start,
        end=_end(_TO_LINE_END, text, value.end),
        indent=indent,
        parts=parts,
        raw=raw,
        table=table,
        value=value,
    )


def _key(text: str, at: int) -> tuple[Path, Path, int]:
    """Return a dotted key's parts, as decoded and as written, and where it ends."""
    parts: list[str] = []
    raw: list[str] = []
    while True:
        at = _end(_SPACE, text, at)
        match = _STRING.match(text, at) or _BARE_KEY.match(text, at)
        word = match.group() if match else ""
        parts.append(_decoded(word))
        raw.append(word)
        at = _end(_SPACE, text, at + len(word))
        if not text.startswith(".", at):
            return tuple(parts), tuple(raw), at
        at += 1


def _decoded(word: str) -> str:
    if word.startswith('"'):
        return _ESCAPE.sub(_unescaped, word[1:-1])
    return word[1:-1] if word.startswith("'") else word


def _unescaped(match: re.Match[str]) -> str:
    four, eight, one = match.groups()
    if one is not None:
        return _ESCAPES.get(one, one)
    return chr(int(four or eight, 16))


def _value(text: str, at: int) -> Value:
    if text.startswith("[", at):
        items, end = _items(text, at + 1)
        return Value(kind="array", start=at, end=end, items=items)
    if text.startswith("{", at):
        members, end = _members(text, at + 1)
        return Value(kind="inline", start=at, end=end, members=members)
    string = _STRING.match(text, at)
    if string:
        return Value(kind="scalar", start=at, end=string.end())
    end = _end(_BARE_VALUE, text, at)
    return Value(kind="scalar", start=at, end=at + len(text[at:end].rstrip()))


def _items(text: str, at: int) -> tuple[tuple[Value, ...], int]:
    items: list[Value] = []
    at = _end(_GAP, text, at)
    while at < len(text) and text[at] != "]":
        items.append(_value(text, at))
        at = _closing(text, items[-1].end)
    return tuple(items), at + 1


def _members(text: str, at: int) -> tuple[tuple[Member, ...], int]:
    members: list[Member] = []
    at = _end(_GAP, text, at)
    while at < len(text) and text[at] != "}":
        parts, _, after = _key(text, at)
        value = _value(text, _end(_SPACE, text, after + 1))
        members.append(Member(parts, at, value))
        at = _closing(text, value.end)
    return tuple(members), at + 1


def _closing(text: str, at: int) -> int:
    """Return where the next element or the closing bracket is, behind an element's end."""
    at = _end(_GAP, text, at)
    return _end(_GAP, text, at + 1) if text.startswith(",", at) else at


def comma(text: str, at: int) -> int:
    """Return where the comma behind an element's end is; -1 if there is none."""
    at = _end(_GAP, text, at)
    return at if text.startswith(",", at) else -1


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
