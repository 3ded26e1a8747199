# SPDX-License-Identifier: Apache-2.0
"""One key put into a TOML text, or taken out, by its lines.

Where a table is opened by a header, a key goes behind its last key; where it is an inline table or
made of dotted keys, it is written in that way; a new table goes behind the last one that it shares
most of its name with. Indentation, quotes, blank lines and line ends are those of the neighbors.

Contract: a parser accepted the text before; `toml_file.edit` compares both meanings after.
"""

from __future__ import annotations

from typing import NamedTuple

from nvct.engine import toml_array, toml_text
from nvct.engine.toml_lookup import is_table, member_at, refuse_in_the_way, span, value_at
from nvct.engine.toml_scan import Statement, Value, statements
from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.toml_scan import Path

STEP = "  "


class Pair(NamedTuple):
    """A new key and its value as text."""

    key: str
    value: str
    note: str = ""

    @property
    def line(self) -> str:
        """Return it as a line."""
        note = f"  # {self.note}" if self.note else ""
        return f"{toml_text.key(self.key)} = {self.value}{note}"


def put(text: str, table: Path, key: str, item: object, path: str) -> str:
    """Return a text in which table.key has a value; a dict is merged into a table.

    Raises:
        EngineConfigError: what is there is another kind of thing.
    """
    if isinstance(item, dict):
        for name, inner in item.items():
            text = put(text, (*table, key), name, inner, path)
        return text if item else _put_table(text, (*table, key), path)
    lines = statements(text)
    wanted = (*table, key)
    refuse_in_the_way(lines, wanted, path)
    value = value_at(lines, wanted)
    if value is not None and value.kind != "inline":
        return _replaced(text, value, item, _quote(text))
    if value is not None or is_table(lines, wanted):
        raise EngineConfigError(f"{path}: {'.'.join(wanted)} is a table, not a value")
    note = item.note if isinstance(item, toml_text.Noted) else ""
    return _added(text, lines, table, Pair(key, toml_text.value(item, _quote(text)), note))


def _put_table(text: str, table: Path, path: str) -> str:
    lines = statements(text)
    value = value_at(lines, table)
    if (value is not None and value.kind == "inline") or is_table(lines, table):
        return text
    refuse_in_the_way(lines, (*table, ""), path)
    return _added(text, lines, table, None)


def delete(text: str, path: Path) -> str:
    """Return a text without a key, or without a table and all that is in it.

    A header whose last key goes, goes with it.
    """
    lines = statements(text)
    inner = member_at(lines, path)
    if inner is not None:
        holder, place = inner
        return toml_array.without(text, [span(member) for member in holder.members], {place})
    place = _last_below(lines, path)
    while place >= 0:
        header = place if lines[place].kind != "pair" else _lonely_header(lines, place)
        if header < 0:
            text = _without_line(text, lines, place)
        else:
            text = _without_section(text, lines, header)
        lines = statements(text)
        place = _last_below(lines, path)
    return text


def _last_below(lines: Sequence[Statement], path: Path) -> int:
    """Return the place of the last header of a table, or of the last pair that makes it."""
    for place in range(len(lines) - 1, -1, -1):
        line = lines[place]
        if line.path[: len(path)] == path and (
            line.kind in ("table", "tables")
            or (line.kind == "pair" and line.table[: len(path)] != path)
        ):
            return place
    return -1


def _lonely_header(lines: Sequence[Statement], place: int) -> int:
    """Return the place of the header whose only content is a pair; -1 if there is more."""
    before = place > 0 and lines[place - 1].kind == "table"
    after = place + 1
    while after < len(lines) and lines[after].kind == "blank":
        after += 1
    ends = after == len(lines) or lines[after].kind in ("table", "tables")
    # A comment right before the next header belongs to that one.
    ends = ends or (lines[after].kind == "comment" and after > place + 1)
    return place - 1 if before and ends else -1


def _without_line(text: str, lines: Sequence[Statement], place: int) -> str:
    """Take out a pair, and the blank line that would then follow nothing or another one."""
    start, end = lines[place].start, lines[place].end
    after_blank = place > 0 and lines[place - 1].kind == "blank"
    if place + 1 == len(lines):
        return _cut(text, lines[place - 1].start if after_blank else start, end)
    if lines[place + 1].kind == "blank" and (after_blank or not place):
        end = lines[place + 1].end
    return _cut(text, start, end)


def _quote(text: str) -> str:
    """Return the quotation mark that a file's strings have."""
    marks = [
        text[line.value.start]
        for line in statements(text)
        if line.value is not None and line.value.start < len(text)
    ]
    return "'" if marks.count("'") > marks.count('"') else '"'


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# Writing


def _replaced(text: str, value: Value, item: object, quote: str) -> str:
    if value.kind == "array" and isinstance(item, (list, tuple)):
        return toml_array.replaced(text, value, list(item), quote)
    new = toml_text.value(item, quote)
    if toml_array.meaning(text[value.start : value.end]) == (type(item), item):
        return text
    return text[: value.start] + new + text[value.end :]


def _added(text: str, lines: Sequence[Statement], table: Path, pair: Pair | None) -> str:
    """Add a pair of key and rendered value to a table, or an empty table."""
    above: Path = table
    rest: Path = ()
    for size in range(len(table), -1, -1):
        above, rest = table[:size], table[size:]
        value = value_at(lines, above)
        if value is not None:
            return _added_inline(text, value, rest, pair)
        if any(line.kind == "table" and line.path == above for line in lines) or not above:
            break
        dotted = [line for line in lines if line.kind == "pair" and _is_below(line, above)]
        if dotted:
            return _added_dotted(text, dotted[-1], size, rest, pair)
        if is_table(lines, above):
            break
    if not rest and (not table or any(_opens(line, table) for line in lines)):
        return text if pair is None else _added_key(text, lines, table, pair)
    return _added_table(text, lines, table, above, pair)


def _opens(line: Statement, table: Path) -> bool:
    return line.kind == "table" and line.path == table


def _is_below(line: Statement, table: Path) -> bool:
    """Say whether a dotted key makes this table, or a part of it, without a header."""
    size = len(table)
    return len(line.table) < size < len(line.path) and line.path[:size] == table


def _added_inline(text: str, value: Value, rest: Path, pair: Pair | None) -> str:
    names = [toml_text.key(name, _quote(text)) for name in rest]
    if pair is not None:
        names, rendered = [*names, toml_text.key(pair.key)], pair.value
    else:
        rendered = "{}"
    for name in reversed(names[1:]):
        rendered = f"{{ {name} = {rendered} }}"
    spans = [span(member) for member in value.members]
    if spans:
        end = spans[-1][1]
        return f"{text[:end]}, {names[0]} = {rendered}{text[end:]}"
    return f"{text[: value.start]}{{ {names[0]} = {rendered} }}{text[value.end :]}"


def _added_dotted(text: str, last: Statement, size: int, rest: Path, pair: Pair | None) -> str:
    head = last.raw[: size - len(last.table)]
    names = [*head, *(toml_text.key(name, _quote(text)) for name in rest)]
    if pair is None:
        return _inserted(text, last.end, [f"{last.indent}{'.'.join(names)} = {{}}"])
    line = ".".join((*names, pair.line))
    return _inserted(text, last.end, [last.indent + line])


def _added_key(text: str, lines: Sequence[Statement], table: Path, pair: Pair) -> str:
    own = [line for line in lines if line.kind == "pair" and line.table == table]
    line = pair.line
    if own:
        return _inserted(text, own[-1].end, [own[-1].indent + line])
    if table:
        header = next(line for line in lines if _opens(line, table))
        return _inserted(text, header.end, [header.indent + _extra(lines, header) + line])
    place = _above_first_header(lines)
    after = [""] if place < len(lines) and lines[place].kind != "blank" else []
    at = lines[place].start if place < len(lines) else len(text)
    return _inserted(text, at, [line, *after])


def _above_first_header(lines: Sequence[Statement]) -> int:
    """Return the place before the first header and the comment that belongs to it."""
    headers = (n for n, line in enumerate(lines) if line.kind in ("table", "tables"))
    place = next(headers, len(lines))
    return _above_comment(lines, place) if place < len(lines) else place


def _above_comment(lines: Sequence[Statement], place: int) -> int:
    """Return the place before a header's own comment; a file's first comment is the file's."""
    first = place
    while first and lines[first - 1].kind == "comment":
        first -= 1
    return first or place


def _added_table(
    text: str,
    lines: Sequence[Statement],
    table: Path,
    above: Path,
    pair: Pair | None,
) -> str:
    """Add a header, and a first key: before the tables inside it, or behind its neighbors."""
    headers = [line for line in lines if line.kind == "table"]
    indent = _header_indent(headers, table)
    new = [f"{indent}[{_header(lines, table, _quote(text))}]"]
    if pair is not None:
        like = _like(headers, table)
        extra = _extra(lines, like)
        new.append(f"{indent}{extra}{pair.line}")
    if above == table:
        place = next(n for n, line in enumerate(lines) if _is_header_of(line, table))
        place = _above_comment(lines, place)
        blank = lines[place - 1].kind == "blank" if place else _wants_blank(lines, len(lines) - 1)
        return _inserted(text, lines[place].start, [*new, ""] if blank else new)
    place = _last_of(lines, above)
    at = lines[place].end if place >= 0 else len(text)
    if _wants_blank(lines, place):
        new.insert(0, "")
    return _inserted(text, at, new)


def _like(headers: Sequence[Statement], table: Path) -> Statement | None:
    """Return the header that is nearest to a new one: of the same depth, best of the same name."""
    near = [line for line in headers if len(line.path) == len(table)]
    return max(
        near,
        key=lambda line: (_shared(line.path, table), line.path[-1] == table[-1]),
        default=None,
    )


def _is_header_of(line: Statement, table: Path) -> bool:
    return line.kind in ("table", "tables") and line.path[: len(table)] == table


def _last_of(lines: Sequence[Statement], above: Path) -> int:
    """Return the place of the last line of the last section that is in a table; -1 for none.

    Comments that follow at once belong to it, unless a header follows these at once.
    """
    place = -1
    for n, line in enumerate(lines):
        if line.kind in ("table", "tables", "pair") and line.path[: len(above)] == above:
            place = n
    after = place + 1
    while after < len(lines) and lines[after].kind == "comment":
        after += 1
    if after == len(lines) or lines[after].kind == "blank":
        place = after - 1
    if not above:  # a new table that has no neighbors goes to the end
        place = len(lines) - 1
        while place >= 0 and lines[place].kind == "blank":
            place -= 1
    return place


def _wants_blank(lines: Sequence[Statement], place: int) -> bool:
    if place < 0:
        return False
    if place + 1 < len(lines):
        return lines[place + 1].kind == "blank"
    later = [n for n, line in enumerate(lines) if n and line.kind in ("table", "tables")]
    return not later or any(lines[n - 1].kind in ("blank", "comment") for n in later)


def _header(lines: Sequence[Statement], table: Path, quote: str) -> str:
    """Return a header's inside, with the parts spelled as other headers spell them."""
    spelled = [toml_text.key(name, quote) for name in table]
    best = 0
    for line in lines:
        if line.kind == "table":
            shared = _shared(line.path, table)
            if shared > best:
                best = shared
                spelled[:shared] = line.raw[:shared]
    return ".".join(spelled)


def _shared(one: Path, other: Path) -> int:
    size = 0
    while size < min(len(one), len(other)) and one[size] == other[size]:
        size += 1
    return size


def _header_indent(headers: Sequence[Statement], table: Path) -> str:
    near = [line for line in headers if line.path[:-1] == table[:-1]]
    if not near:
        near = [line for line in headers if len(line.path) == len(table) > 1]
        near = [line for line in near if line.path[0] == table[0]]
    if near:
        return max(near, key=lambda line: _shared(line.path, table)).indent
    parent = max(
        (line for line in headers if table[: len(line.path)] == line.path),
        key=lambda line: len(line.path),
        default=None,
    )
    if parent is None:
        return ""
    nested = any(line.indent for line in headers)
    return parent.indent + (STEP if nested else "")


def _extra(lines: Sequence[Statement], header: Statement | None) -> str:
    """Return how much farther in than its header a key stands in this file."""
    sections = [line for line in lines if line.kind == "table"]
    if header is not None:
        sections = [header, *sections]
    for section in sections:
        for line in lines:
            if line.kind == "pair" and line.table == section.path:
                return line.indent.removeprefix(section.indent)
    return STEP if any(line.indent for line in sections) else ""


def _inserted(text: str, at: int, new: Sequence[str]) -> str:
    """Insert lines at the start of a line, or behind the last one."""
    end = _line_end(text)
    if at == len(text) and text.removeprefix("\ufeff") and not text.endswith("\n"):
        return text + end + end.join(new)
    return text[:at] + "".join(line + end for line in new) + text[at:]


def _cut(text: str, start: int, end: int) -> str:
    """Take lines out; a last line without an end leaves the one before without, too."""
    rest = text[end:]
    if not rest and not text.endswith("\n"):
        return text[:start].removesuffix("\n").removesuffix("\r")
    return text[:start] + rest


def _without_section(text: str, lines: Sequence[Statement], place: int) -> str:
    """Take out a header and its keys, with the blank line before where another one follows."""
    last = place
    for n in range(place + 1, len(lines)):
        if lines[n].kind in ("table", "tables"):
            break
        if lines[n].kind == "pair":
            last = n
    start = lines[place].start
    next_is_blank = last + 1 == len(lines) or lines[last + 1].kind == "blank"
    if place and lines[place - 1].kind == "blank" and next_is_blank:
        start = lines[place - 1].start
    return _cut(text, start, lines[last].end)
