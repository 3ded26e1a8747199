# SPDX-License-Identifier: Apache-2.0
"""Splits a TOML text into lines with a meaning: header, pair, comment or blank.

tomlkit's tree tells the meaning, and changes members of inline tables. tomlkit does not write the
file: that would change the indentation of some nested tables, and the order of some tables.

Contract: a parser accepted the text, whose last line ends with a newline.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AoT, Comment, InlineTable, Item, Key, Table

from nvct.engine.toml_file import same
from nvct.errors import EngineConfigError

Path: TypeAlias = tuple[str, ...]
Body: TypeAlias = list[tuple[Key | None, Item]]

GAPS = ("blank", "comment")


class Node(NamedTuple):
    """One header, pair, comment or blank line.

    Attributes:
        kind: "table", "tables" ([[...]]), "pair", "comment" or "blank".
        path: of the key or table, from the root.
        spelled: the same path with the quotes of the text.
        table: path of the header above it, or of the header that it is.
        text: its value and the rest of the line.
        start: number of its first line.
        end: number of the line after it.
    """

    kind: str
    path: Path
    spelled: Path
    table: Path
    item: Item
    text: str
    start: int = 0
    end: int = 0
    indent: str = ""

    @property
    def is_header(self) -> bool:
        """Whether it is the header of a table."""
        return self.kind in ("table", "tables")


class Source:
    """The lines of a text and its nodes."""

    def __init__(self, text: str, path: str) -> None:
        """Parse a text.

        Raises:
            EngineConfigError: tomlkit does not keep the order of its lines.
        """
        self.lines = [f"{line}\n" for line in text.split("\n")[:-1]]
        self.nodes: list[Node] = []
        line_number = 0
        for node in _parsed(text):
            end = line_number + node.text.count("\n")
            node_text = "".join(self.lines[line_number:end])
            if not node_text.endswith(node.text.lstrip(" \t")):
                break
            indent = node_text[: len(node_text) - len(node_text.lstrip(" \t"))]
            self.nodes.append(node._replace(start=line_number, end=end, indent=indent))
            line_number = end
        if line_number != len(self.lines):
            raise EngineConfigError(
                f"{path} cannot be edited without changing more than was asked for",
                hint="edit it by hand; `plan` shows what is wanted",
            )

    @property
    def text(self) -> str:
        """Return the text."""
        return "".join(self.lines)

    def insert(self, line_number: int, lines: Sequence[str]) -> None:
        """Insert lines before the line of a number."""
        self.lines[line_number:line_number] = [f"{line}\n" for line in lines]

    def remove(self, start: int, end: int) -> None:
        """Remove lines from one number to before another."""
        del self.lines[start:end]

    def replace_value(self, node: Node, item: Item) -> None:
        """Replace the value of a pair."""
        pair_text = "".join(self.lines[node.start : node.end])
        prefix = pair_text.removesuffix(node.text)
        self.lines[node.start : node.end] = [prefix + item.as_string() + _trailing_text(item)]


def _parsed(text: str) -> list[Node]:
    """Return the nodes of a text, [] if tomlkit refuses a text that another parser accepted."""
    try:
        return list(_nodes(tomlkit.parse(text).body))
    except (TOMLKitError, RecursionError):
        return []


def _nodes(body: Body, path: Path = (), spelled: Path = (), table: Path = ()) -> Iterator[Node]:
    """Yield the nodes of a tree in the order of the text."""
    for key, item in body:
        if key is None:
            kind = "comment" if isinstance(item, Comment) else "blank"
            for line in item.as_string().split("\n")[:-1]:
                yield Node(kind, path, spelled, table, item, f"{line}\n")
            continue
        inner, names = (*path, key.key), (*spelled, key.as_string().strip())
        if isinstance(item, AoT):
            for element in item.body:
                yield Node("tables", inner, names, inner, element, _trailing_text(element))
                yield from _nodes(element.value.body, inner, names, inner)
        elif isinstance(item, Table):
            header_path = table if key.is_dotted() else inner
            if not key.is_dotted() and not item.is_super_table():
                yield Node("table", inner, names, inner, item, _trailing_text(item))
            yield from _nodes(item.value.body, inner, names, header_path)
        else:
            text = item.as_string() + _trailing_text(item)
            yield Node("pair", inner, names, table, item, text)


def _trailing_text(item: Item) -> str:
    return f"{item.trivia.comment_ws}{item.trivia.comment}{item.trivia.trail}"


def pair(nodes: Sequence[Node], path: Path) -> Node | None:
    """Return the pair of a path."""
    return next((node for node in nodes if node.kind == "pair" and node.path == path), None)


def inline_above(nodes: Sequence[Node], path: Path) -> Node | None:
    """Return the pair whose inline table holds a path, or would hold it."""
    for node in nodes:
        is_parent = len(node.path) < len(path) and node.path == path[: len(node.path)]
        if is_parent and node.kind == "pair" and isinstance(node.item, InlineTable):
            return node
    return None


def is_table(nodes: Sequence[Node], path: Path) -> bool:
    """Report whether a path has a header, or keys below it."""
    size = len(path)
    return any(
        node.path[:size] == path and (node.is_header or len(node.path) > size)
        for node in nodes
        if node.kind not in GAPS
    )


def refuse_in_the_way(nodes: Sequence[Node], target: Path, path: str) -> None:
    """Refuse a path that leads through a value or an array of tables.

    Raises:
        EngineConfigError: it does.
    """
    for size in range(1, len(target)):
        parent = target[:size]
        value = pair(nodes, parent)
        if value and not isinstance(value.item, InlineTable):
            raise EngineConfigError(
                f"{path}: {'.'.join(parent)} is a value, not a table", hint="correct the file"
            )
        if any(node.kind == "tables" and node.path == parent for node in nodes):
            raise EngineConfigError(
                f"{path}: {'.'.join(parent)} is an array of tables, not a table",
                hint="correct the file",
            )


def put_member(table: Item, path: Path, value: object, quote: str, where: str) -> Item:
    """Return an inline table in which a path has a value.

    Raises:
        EngineConfigError: the member is of another kind.
    """
    body: Body = table.value.body
    plain = list(value) if isinstance(value, tuple) else value
    for index, (key, item) in enumerate(body):
        if key is None or key.key != path[0]:
            continue
        if isinstance(item, Table):  # a dotted key
            break
        if len(path) == 1 and isinstance(item, InlineTable):
            if value == {}:
                return table
            raise EngineConfigError(f"{where} is a table, not a value")
        if len(path) == 1 and same(item.unwrap(), plain):
            return table
        if len(path) == 1:
            body[index] = (key, with_trivia_of(item, item_of(value_text(value, quote))))
            return table
        if not isinstance(item, InlineTable):
            parent = where.rsplit(".", len(path) - 1)[0]
            raise EngineConfigError(f"{parent} is a value, not a table", hint="correct the file")
        body[index] = (key, put_member(item, path[1:], value, quote, where))
        return table
    return with_trivia_of(table, item_of(_with_member(table.as_string(), path, value, quote)))


def _with_member(text: str, path: Path, value: object, quote: str) -> str:
    """Return the text of an inline table with a member after the others."""
    inner = value_text(value, quote)
    for name in reversed(path[1:]):
        inner = f"{{ {key_text(name, quote)} = {inner} }}"
    content = text[1:-1].rstrip()
    if not content:
        return f"{{ {key_text(path[0], quote)} = {inner} }}"
    space = text[1 + len(content) : -1]
    return f"{{{content}, {key_text(path[0], quote)} = {inner}{space}}}"


def remove_member(table: Item, path: Path) -> None:
    """Remove a member of an inline table, if it exists."""
    body: Body = table.value.body
    members = [n for n, (key, _item) in enumerate(body) if key is not None]
    for number, index in enumerate(members):
        key, item = body[index]
        if key is None or key.key != path[0]:
            continue
        if len(path) > 1:
            if isinstance(item, (InlineTable, Table)):
                remove_member(item, path[1:])
            continue
        if number:  # with what separates it from the one before
            body[members[number - 1]][1].trivia.trail = item.trivia.trail
            del body[members[number - 1] + 1 : index + 1]
        else:
            del body[index : members[1] if len(members) > 1 else len(body)]
        return


def with_trivia_of(old: Item, new: Item) -> Item:
    """Return a value with the white space and the comment of another around it."""
    new.trivia.indent = old.trivia.indent
    new.trivia.comment_ws = old.trivia.comment_ws
    new.trivia.comment = old.trivia.comment
    new.trivia.trail = old.trivia.trail
    return new


def item_of(text: str) -> Item:
    """Return a value from its text."""
    return next(item for key, item in tomlkit.parse(f"key = {text}\n").body if key is not None)


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def key_text(name: str, quote: str = '"') -> str:
    """Return one part of a key, quoted only if necessary."""
    return name if _BARE.fullmatch(name) else value_text(name, quote)


def value_text(value: object, quote: str = '"') -> str:
    """Return a value on one line; strings in single quotes if `quote` is one and they can be.

    Raises:
        EngineConfigError: TOML has no such value.
    """
    if isinstance(value, str):
        literal = quote == "'" and "'" not in value and value.isprintable()
        return tomlkit.string(str(value), literal=literal).as_string()
    if isinstance(value, (bool, int, float, dt.datetime, dt.date, dt.time)):
        return tomlkit.item(value).as_string()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        return _inline(value, quote)
    raise EngineConfigError(f"{value!r:.80} is no value that TOML has")


def _inline(table: Mapping[str, object], quote: str) -> str:
    pairs = [
        f"{key_text(name, quote)} = {value_text(item, quote)}" for name, item in table.items()
    ]
    return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
