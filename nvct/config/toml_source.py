# SPDX-License-Identifier: Apache-2.0
"""Splits a TOML text into statements; writes values, and edits arrays and inline tables.

Contract: a parser has accepted the text, whose last line ends with a newline.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from nvct.config import spans, toml
from nvct.config.spans import Item, after_space, items, value_end
from nvct.config.tables import Path, same
from nvct.errors import EngineConfigError

GAPS = ("blank", "comment")
HEADERS = ("table", "tables")
_BLANKS = " \t"
_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Noted(NamedTuple):
    """A value, and the comment that is written behind it if it gets a line of its own."""

    value: object
    note: str


class Node(NamedTuple):
    """One header, pair, comment or blank line, which is text[start:end], whole lines."""

    kind: str  # "table", "tables" ([[...]]), "pair", "comment" or "blank"
    start: int
    end: int
    indent: str
    path: Path = ()  # of the key or table, from the root
    spelled: Path = ()  # the same path with the quotes of the text
    table: Path = ()  # path of the header above it; of a header, its own
    value: int = 0  # where the value of a pair starts


def statements(text: str) -> list[Node]:
    """Return the statements of a text in their order."""
    nodes: list[Node] = []
    table: Path = ()
    spelled: Path = ()
    start = 0
    while start < len(text):
        at = after_space(text, start, _BLANKS)
        indent = text[start:at]
        end = text.index("\n", at) + 1
        if text[at] in "\r\n#":
            node = Node("comment" if text[at] == "#" else "blank", start, end, indent)
        elif text[at] == "[":
            is_array = text.startswith("[[", at)
            table, spelled, at = spans.key(text, at + 1 + is_array)
            kind = "tables" if is_array else "table"
            node = Node(kind, start, end, indent, table, spelled, table)
        else:
            names, parts, at = spans.key(text, at)
            at = after_space(text, after_space(text, at) + 1)
            end = text.index("\n", value_end(text, at)) + 1
            where = (*table, *names), (*spelled, *parts)
            node = Node("pair", start, end, indent, *where, table, at)
        nodes.append(node)
        start = end
    return nodes


def pair(nodes: Sequence[Node], path: Path) -> Node | None:
    """Return the pair that sets the key at a path."""
    return next((node for node in nodes if node.kind == "pair" and node.path == path), None)


def inline_above(text: str, nodes: Sequence[Node], path: Path) -> Node | None:
    """Return the pair whose inline table holds a path or would hold it, None if there is none."""
    for size in range(1, len(path)):
        node = pair(nodes, path[:size])
        if node and text[node.value] == "{":
            return node
    return None


def is_table(nodes: Sequence[Node], path: Path) -> bool:
    """Report whether a path has a header, or keys below it."""
    size = len(path)
    return any(
        node.path[:size] == path and (node.kind in HEADERS or len(node.path) > size)
        for node in nodes
    )


# Arrays and inline tables: `start` is the position of one


def put_member(  # noqa: PLR0917  each call needs them all
    text: str, start: int, path: Path, value: object, quote: str, where: str
) -> str:
    """Return a text with a value set in an inline table; EngineConfigError names `where`."""
    members = items(text, start)
    for member in members:
        rest = path[len(member.path) :]
        if path[: len(member.path)] != member.path:
            continue
        if not rest:
            return replaced(text, member.value, value, quote, where)
        if text[member.value] != "{":
            name = where.rsplit(".", len(rest))[0]
            raise EngineConfigError(f"{name} is a value, not a table", hint="correct the file")
        return put_member(text, member.value, rest, value, quote, where)
    names = [key_text(name, quote) for name in path]
    added = f"{names.pop()} = {value_text(value, quote)}"
    is_dotted = any(member.path[0] == path[0] for member in members)
    for name in reversed(names):
        added = f"{name}.{added}" if is_dotted else f"{name} = {{ {added} }}"
    if not members:
        return f"{text[:start]}{{ {added} }}{text[value_end(text, start) :]}"
    return f"{text[: members[-1].end]}, {added}{text[members[-1].end :]}"


def remove_member(text: str, start: int, path: Path) -> str:
    """Return a text without a member of an inline table; unchanged if that lacks the member."""
    members = items(text, start)
    for number, member in enumerate(members):
        if member.path[: len(path)] == path:
            return remove_member(_without(text, start, members, number), start, path)
        if path[: len(member.path)] == member.path and text[member.value] == "{":
            return remove_member(text, member.value, path[len(member.path) :])
    return text


def replaced(text: str, start: int, value: object, quote: str, where: str) -> str:
    """Return a text with a value replaced; EngineConfigError if only one of both is a table."""
    end = value_end(text, start)
    old = toml.loads(f"value = {text[start:end]}")["value"]
    new = list(value) if isinstance(value, tuple) else value
    if same(old, new) or (isinstance(old, dict) and new == {}):
        return text
    if isinstance(old, dict):
        raise EngineConfigError(f"{where} is a table, not a value")
    if new == {}:
        raise EngineConfigError(f"{where} is a value, not a table")
    if isinstance(old, list) and isinstance(new, list):
        if old and same(new[: len(old)], old):
            for element in new[len(old) :]:
                text = _appended(text, start, value_text(element, quote))
            return text
        removed = _removed_positions(old, new)
        for number in reversed(removed):
            text = _without(text, start, items(text, start), number)
        if removed:
            return text
    return text[:start] + value_text(value, quote) + text[end:]


def _removed_positions(old: Sequence[object], new: Sequence[object]) -> list[int]:
    """Return the positions of removed elements; [] if anything else differs, too."""
    removed, position = [], 0
    for number, element in enumerate(old):
        if position < len(new) and same(new[position], element):
            position += 1
        else:
            removed.append(number)
    return removed if position == len(new) else []


def _appended(text: str, start: int, element: str) -> str:
    """Return a text with an element appended to an array, on its own line if the last one is."""
    last = items(text, start)[-1]
    line, line_end = text.rfind("\n", 0, last.start) + 1, text.find("\n", last.end) + 1
    if line <= start or line_end > value_end(text, start):
        return f"{text[: last.end]}, {element}{text[last.end :]}"
    has_comma = text[after_space(text, last.end)] == ","
    added = f"{text[line : after_space(text, line)]}{element}{',' * has_comma}\n"
    comma = "" if has_comma else ","
    return text[: last.end] + comma + text[last.end : line_end] + added + text[line_end:]


def _without(text: str, start: int, every: Sequence[Item], number: int) -> str:
    """Return a text without an item of an array or inline table, nor its line if it has one."""
    item = every[number]
    line, line_end = text.rfind("\n", 0, item.start) + 1, text.find("\n", item.end)
    rest = text[item.end : line_end].lstrip().removeprefix(",").lstrip()
    if line > start and not text[line : item.start].strip() and rest[:1] in ("", "#"):
        return text[:line] + text[line_end + 1 :]
    return spans.without(text, start, every, number)


# Values


def key_text(name: str, quote: str = '"') -> str:
    """Return one part of a key, quoted only if necessary."""
    return name if _BARE.fullmatch(name) else value_text(name, quote)


def value_text(value: object, quote: str = '"') -> str:
    """Return a value on one line, strings in `quote` if possible; EngineConfigError otherwise."""
    if isinstance(value, str):
        if quote == "'" and "'" not in value and value.isprintable():
            return f"'{value}'"
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(item, quote) for item in value) + "]"
    if isinstance(value, dict):
        pairs = [
            f"{key_text(key, quote)} = {value_text(item, quote)}" for key, item in value.items()
        ]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    raise EngineConfigError(f"TOML has no value such as {value!r:.80}")
