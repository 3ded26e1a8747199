# SPDX-License-Identifier: Apache-2.0
"""Sets or removes one key of a TOML text; every other byte stays.

tomlkit finds the lines (`toml_source`) and edits values. This module places new lines: a key after
the last one of its table, a table after the last one with the longest common path, both with the
indentation and blank lines of their neighbors. tomlkit itself would indent new tables differently,
leave out or add blank lines, refuse some dotted keys, and not undo its own edits.

Contract: a parser accepted the text, whose last line ends with a newline; `toml_file.edit`
compares the meaning of both texts afterwards.
"""

from __future__ import annotations

from tomlkit.items import Array, InlineTable, Item

from nvct.engine.files import toml_inline
from nvct.engine.files.toml_inline import item_of
from nvct.engine.files.toml_source import (
    GAPS,
    Source,
    inline_above,
    is_table,
    pair,
    refuse_in_the_way,
)
from nvct.engine.files.toml_value import Noted, key_text, same, value_text
from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.files.toml_source import Node, Path

STEP = "  "


def put(text: str, table: Path, key: str, value: object, path: str) -> str:
    """Return a text in which table.key has a value; a dict is merged into a table.

    Raises:
        EngineConfigError: the key or a table above it is of another kind.
    """
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            text = put(text, (*table, key), name, inner, path)
        return text
    source = Source(text, path)
    target = (*table, key)
    refuse_in_the_way(source.nodes, target, path)
    old = pair(source.nodes, target)
    if (old and isinstance(old.item, InlineTable)) or is_table(source.nodes, target):
        if value == {}:
            return text
        raise EngineConfigError(f"{path}: {'.'.join(target)} is a table, not a value")
    if old and value == {}:
        raise EngineConfigError(f"{path}: {'.'.join(target)} is a value, not a table")
    quote = _quote(text)
    holder = inline_above(source.nodes, target)
    if old:
        source.replace_value(old, _replaced(old.item, value, quote))
    elif holder:
        rest = target[len(holder.path) :]
        where = f"{path}: {'.'.join(target)}"
        source.replace_value(holder, toml_inline.put(holder.item, rest, value, quote, where))
    elif value == {}:
        _add(source, target, "", quote)
    else:
        note = f"  # {value.note}" if isinstance(value, Noted) else ""
        line = f"{key_text(key, quote)} = {value_text(value, quote)}{note}"
        _add(source, table, line, quote)
    return source.text


def _replaced(old: Item, value: object, quote: str) -> Item:
    """Return a value that replaces another; kept elements of an array keep their text."""
    if same(old.unwrap(), list(value) if isinstance(value, tuple) else value):
        return old
    if isinstance(old, Array) and isinstance(value, (list, tuple)):
        now, wanted = old.unwrap(), list(value)
        if now and same(wanted[: len(now)], now):
            for item in wanted[len(now) :]:
                old.append(item_of(value_text(item, quote)))
            return old
        gone = _left_out(now, wanted)
        for place in reversed(gone):
            old.pop(place)
        if gone:
            return old
    return toml_inline.like(old, item_of(value_text(value, quote)))


def _left_out(old: Sequence[object], new: Sequence[object]) -> list[int]:
    """Return the positions of removed elements if nothing else differs, else none."""
    gone, place = [], 0
    for number, item in enumerate(old):
        if place < len(new) and same(new[place], item):
            place += 1
        else:
            gone.append(number)
    return gone if place == len(new) else []


# Adding


def _add(source: Source, table: Path, pair: str, quote: str) -> None:
    """Add a pair to a table, or an empty table if the pair is ""."""
    nodes = source.nodes
    header = next((node for node in nodes if node.kind == "table" and node.path == table), None)
    dotted = _dotted(nodes, table)
    if header or not table:
        _add_pair(source, header, pair)
    elif dotted:
        node, size = dotted
        names = [*node.spelled[len(node.table) : size]]
        names += [key_text(name, quote) for name in table[size:]]
        line = ".".join([*names, pair]) if pair else f"{'.'.join(names)} = {{}}"
        source.insert(node.end, [node.indent + line])
    else:
        _add_table(source, table, pair, quote)


def _dotted(nodes: Sequence[Node], table: Path) -> tuple[Node, int] | None:
    """Return the last dotted key that defines a table or its nearest parent, and the depth.

    None if a header defines a nearer parent.
    """
    for size in range(len(table), 0, -1):
        above = table[:size]
        if any(node.is_header and node.path[:size] == above for node in nodes):
            return None
        pairs = [node for node in nodes if node.kind == "pair" and node.path[:size] == above]
        if pairs:
            return pairs[-1], size
    return None


def _add_pair(source: Source, header: Node | None, pair: str) -> None:
    """Add a pair after the last one of a table; without one, before the first header."""
    nodes = source.nodes
    table = header.path if header else ()
    own = [node for node in nodes if node.kind == "pair" and node.table == table]
    first = next((n for n, node in enumerate(nodes) if node.is_header), len(nodes))
    if own:
        source.insert(own[-1].end, [own[-1].indent + pair])
    elif header:
        source.insert(header.end, [header.indent + _step(nodes, header) + pair])
    elif first == len(nodes):
        source.insert(len(source.lines), [pair])
    else:
        place = nodes[_above_comment(nodes, first)]
        source.insert(place.start, [pair] if place.kind == "blank" else [pair, ""])


def _above_comment(nodes: Sequence[Node], place: int) -> int:
    """Return the place before a header's own comment; the first comment belongs to the file."""
    first = place
    while first and nodes[first - 1].kind == "comment":
        first -= 1
    return first or place


def _add_table(source: Source, table: Path, pair: str, quote: str) -> None:
    """Add a header and its first pair: before the tables inside it, or after its neighbors."""
    nodes = source.nodes
    headers = [node for node in nodes if node.kind == "table"]
    indent = _header_indent(headers, table)
    near = max(headers, key=lambda node: _shared(node.path, table), default=None)
    shared = _shared(near.path, table) if near else 0
    names = [*(near.spelled[:shared] if near else ())]
    names += [key_text(name, quote) for name in table[shared:]]
    new = [f"{indent}[{'.'.join(names)}]"]
    if pair:
        new.append(indent + _step(nodes, _like(headers, table)) + pair)
    size = len(table)
    inside = [n for n, node in enumerate(nodes) if node.is_header and node.path[:size] == table]
    if inside:
        place = _above_comment(nodes, inside[0])
        before = nodes[place - 1].kind == "blank" if place else _wants_blank(nodes, len(nodes) - 1)
        source.insert(nodes[place].start, [*new, ""] if before else new)
        return
    place = _behind(nodes, table)
    if _wants_blank(nodes, place):
        new.insert(0, "")
    source.insert(nodes[place].end if place >= 0 else 0, new)


def _behind(nodes: Sequence[Node], table: Path) -> int:
    """Return the place of the last line of the last section that is nearest to a table.

    Comments that follow at once belong to that section, unless a header follows these at once.
    """
    for size in range(len(table) - 1, 0, -1):
        near = [
            n
            for n, node in enumerate(nodes)
            if node.kind not in GAPS and node.path[:size] == table[:size]
        ]
        if near:
            break
    else:
        place = len(nodes) - 1
        while place >= 0 and nodes[place].kind == "blank":
            place -= 1
        return place
    after = near[-1] + 1
    while after < len(nodes) and nodes[after].kind == "comment":
        after += 1
    return after - 1 if after == len(nodes) or nodes[after].kind == "blank" else near[-1]


def _wants_blank(nodes: Sequence[Node], place: int) -> bool:
    """Report whether this file has blank lines between its tables."""
    if place < 0:
        return False
    if place + 1 < len(nodes):
        return nodes[place + 1].kind == "blank"
    later = [n for n, node in enumerate(nodes) if n and node.is_header]
    return not later or any(nodes[n - 1].kind in GAPS for n in later)


def _shared(one: Path, other: Path) -> int:
    size = 0
    while size < min(len(one), len(other)) and one[size] == other[size]:
        size += 1
    return size


def _like(headers: Sequence[Node], table: Path) -> Node | None:
    """Return the header of the same depth that is nearest to a new one."""
    near = [node for node in headers if len(node.path) == len(table)]
    return max(
        near,
        key=lambda node: (_shared(node.path, table), node.path[-1] == table[-1]),
        default=None,
    )


def _header_indent(headers: Sequence[Node], table: Path) -> str:
    near = [node for node in headers if node.path[:-1] == table[:-1]]
    near = near or [
        node for node in headers if len(node.path) == len(table) > 1 and node.path[0] == table[0]
    ]
    if near:
        return max(near, key=lambda node: _shared(node.path, table)).indent
    parents = [node for node in headers if table[: len(node.path)] == node.path]
    parent = max(parents, key=lambda node: len(node.path), default=None)
    if parent is None:
        return ""
    return parent.indent + (STEP if any(node.indent for node in headers) else "")


def _step(nodes: Sequence[Node], header: Node | None) -> str:
    """Return the additional indentation of keys below a header in this file."""
    headers = [node for node in nodes if node.kind == "table"]
    for section in [header, *headers] if header else headers:
        for node in nodes:
            if node.kind == "pair" and node.table == section.path:
                return node.indent.removeprefix(section.indent)
    return STEP if any(node.indent for node in headers) else ""


def _quote(text: str) -> str:
    """Return the quotation mark of a file's strings."""
    return "'" if text.count("= '") > text.count('= "') else '"'


# Taking out


def delete(text: str, path: Path, name: str) -> str:
    """Return a text without a key, or without a table and its content.

    A header is removed with its last key.

    Raises:
        EngineConfigError: tomlkit does not keep the order of its nodes.
    """
    while True:
        source = Source(text, name)
        holder = inline_above(source.nodes, path)
        if holder:
            toml_inline.remove(holder.item, path[len(holder.path) :])
            source.replace_value(holder, holder.item)
            return source.text
        last = _last_below(source.nodes, path)
        if last < 0:
            return text
        is_header = source.nodes[last].is_header
        header = last if is_header else _lonely_header(source.nodes, last)
        if header < 0:
            _remove_pair(source, last)
        else:
            _remove_section(source, header)
        text = source.text


def _last_below(nodes: Sequence[Node], path: Path) -> int:
    """Return the place of the last header of a table, or of the last pair that defines it."""
    size = len(path)
    for place in range(len(nodes) - 1, -1, -1):
        node = nodes[place]
        is_below = node.path[:size] == path and node.kind not in GAPS
        if is_below and (node.is_header or node.table[:size] != path):
            return place
    return -1


def _lonely_header(nodes: Sequence[Node], place: int) -> int:
    """Return the place of the header whose only content is a pair; -1 if there is more."""
    if not place or nodes[place - 1].kind != "table":
        return -1
    after = place + 1
    while after < len(nodes) and nodes[after].kind == "blank":
        after += 1
    # A comment right before the next header belongs to that one.
    ends = after == len(nodes) or nodes[after].is_header
    ends = ends or (nodes[after].kind == "comment" and after > place + 1)
    return place - 1 if ends else -1


def _remove_pair(source: Source, place: int) -> None:
    """Remove a pair, and a blank line that would be the first or a second one."""
    nodes = source.nodes
    start, end = nodes[place].start, nodes[place].end
    after_blank = place > 0 and nodes[place - 1].kind == "blank"
    if place + 1 == len(nodes):
        start -= after_blank
    elif nodes[place + 1].kind == "blank" and (after_blank or not place):
        end += 1
    source.remove(start, end)


def _remove_section(source: Source, place: int) -> None:
    """Remove a header and its pairs, and the blank line before if another follows."""
    nodes = source.nodes
    last = place
    for n in range(place + 1, len(nodes)):
        if nodes[n].is_header:
            break
        if nodes[n].kind == "pair":
            last = n
    start = nodes[place].start
    follows_blank = last + 1 == len(nodes) or nodes[last + 1].kind == "blank"
    if place and nodes[place - 1].kind == "blank" and follows_blank:
        start -= 1
    source.remove(start, nodes[last].end)
