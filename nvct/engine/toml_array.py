# SPDX-License-Identifier: Apache-2.0
"""An array in a TOML text: elements added and taken out with the others as they are written."""

from __future__ import annotations

import sys
from importlib import import_module

from nvct.engine import toml_text
from nvct.engine.toml_scan import comma

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.toml_scan import Value


def meaning(raw: str) -> tuple[type, object]:
    """Return what a value means, with its type: true is not 1."""
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    found = toml.loads(f"value = {raw}")["value"]
    return type(found), found


def replaced(text: str, value: Value, wanted: Sequence[object], quote: str) -> str:
    """Return a text whose array has other elements; what stays keeps its spelling and comments."""
    old = [meaning(text[item.start : item.end]) for item in value.items]
    new = [(type(item), item) for item in wanted]
    if old == new:
        return text
    gone = _left_out(old, new)
    if gone:
        spans = [(item.start, item.end) for item in value.items]
        return without(text, spans, gone)
    if old and new[: len(old)] == old:
        return _appended(text, value, wanted[len(old) :], quote)
    return text[: value.start] + toml_text.value(list(wanted), quote) + text[value.end :]


def _left_out(old: Sequence[object], new: Sequence[object]) -> set[int]:
    """Return which of the old elements are missing, if that is all the difference."""
    gone: set[int] = set()
    place = 0
    for n, item in enumerate(old):
        if place < len(new) and new[place] == item:
            place += 1
        else:
            gone.add(n)
    return gone if place == len(new) else set()


def _appended(text: str, value: Value, extra: Sequence[object], quote: str) -> str:
    last = value.items[-1]
    rendered = [toml_text.value(item, quote) for item in extra]
    line_end = text.find("\n", last.end, value.end)
    if line_end < 0:
        return text[: last.end] + "".join(f", {item}" for item in rendered) + text[last.end :]
    indent = text[text.rfind("\n", 0, last.start) + 1 : last.start]
    if indent.strip():  # the first element stands behind the bracket
        indent = " " * len(indent)
    trailing = comma(text, last.end)
    end = "\r\n" if text[line_end - 1] == "\r" else "\n"
    lines = f",{end}".join(f"{indent}{item}" for item in rendered)
    if trailing >= 0:
        at = max(line_end, text.find("\n", trailing, value.end)) + 1
        return f"{text[:at]}{lines},{end}{text[at:]}"
    return f"{text[: last.end]},{text[last.end : line_end + 1]}{lines}{end}{text[line_end + 1 :]}"


def without(text: str, spans: Sequence[tuple[int, int]], gone: set[int]) -> str:
    """Return a text without some of the elements, or members, that lie at `spans`."""
    left = len(spans)
    for place in sorted(gone, reverse=True):
        start, end = spans[place]
        behind = comma(text, end)
        if place + 1 < left:
            text = _cut(text, start, behind + 1, next_start=spans[place + 1][0])
        else:
            last_comma = comma(text, spans[place - 1][1]) if place else -1
            text = _cut(text, start, end if behind < 0 else behind + 1, next_start=-1)
            if last_comma >= 0 and behind < 0:
                text = text[:last_comma] + text[last_comma + 1 :]
        left = place if place + 1 == left else left
    return text


def _cut(text: str, start: int, end: int, *, next_start: int) -> str:
    """Take out an element: its line where it is alone there, else it and the space around."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    if not text[line_start:start].strip() and line_end >= 0:
        rest = text[end:line_end].strip()
        if not rest or rest.startswith("#"):
            return text[:line_start] + text[line_end + 1 :]
    if next_start >= 0 and "\n" not in text[end:next_start]:
        return text[:start] + text[next_start:]
    head = text[:start].rstrip(" \t") if text[:start].rstrip(" \t").endswith(",") else text[:start]
    return head + text[end:]
