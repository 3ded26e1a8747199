# SPDX-License-Identifier: Apache-2.0
"""Finds the positions of keys and values in a TOML or JSON text, and removes one.

Contract: a parser has accepted the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from nvct.config import toml
from nvct.config.tables import Path

SPACE = " \t\r\n"
_PART = re.compile(r"""[ \t]*("(?:\\.|[^"\\])*"|'[^']*'|[A-Za-z0-9_-]+)([ \t]*\.)?""")
_SEPARATOR = re.compile(r"(?:[\s,]|#[^\n]*)*")
TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?!")' r"|'''.*?'''(?!')" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'"
    r"|#[^\n]*|[\[\]{},\n]|[^\S\n]+|[^\s\[\]{},\"'#]+",
    re.DOTALL,
)  # fmt: skip


class Item(NamedTuple):
    """An element of an array (its path is ()), or a member of an object or inline table.

    Its name is text[start:name_end], its value text[value:end].
    """

    path: Path
    start: int
    name_end: int
    value: int
    end: int


def items(text: str, start: int) -> list[Item]:
    """Return the items of the array, object or inline table at a position."""
    found: list[Item] = []
    at = _after_separator(text, start + 1)
    while text[at] not in "]}":
        path, name_end, value = Path(), at, at
        if text[start] == "{":
            path, _, name_end = key(text, at)
            value = after_space(text, after_space(text, name_end) + 1)
        found.append(Item(path, at, name_end, value, value_end(text, value)))
        at = _after_separator(text, found[-1].end)
    return found


def without(text: str, start: int, every: Sequence[Item], number: int) -> str:
    """Return a text without an item, and its comma, of the array or object at a position."""
    first, end = every[number].start, every[number].end
    if number and "#" not in text[every[number - 1].end : first]:
        first = every[number - 1].end
    elif len(every) > number + 1:
        end = every[number + 1].start
    elif not number:
        first, end = start + 1, value_end(text, start) - 1
    return text[:first] + text[end:]


def after_space(text: str, at: int, space: str = SPACE) -> int:
    """Return the position after white space."""
    while text[at : at + 1] and text[at] in space:
        at += 1
    return at


def _after_separator(text: str, at: int) -> int:
    match = _SEPARATOR.match(text, at)
    return match.end() if match else at


def key(text: str, at: int) -> tuple[Path, Path, int]:
    """Return a dotted key, the same key with its quotes, and where it ends."""
    spelled: list[str] = []
    dot = "."
    while dot:
        match = _PART.match(text, at)
        if match is None:
            raise ValueError(f"no key at {at}")  # impossible: the parser has accepted one
        part, dot = match.groups()
        spelled.append(part)
        at = match.end()
    return tuple(map(_name, spelled)), tuple(spelled), at


def _name(part: str) -> str:
    if part[0] != '"':
        return part.strip("'")
    try:
        return str(json.loads(part))
    except ValueError:  # \U0001F600, which JSON does not have
        return next(iter(toml.loads(f"{part} = 0")))


def value_end(text: str, at: int) -> int:
    """Return where the value at a position ends."""
    depth, end = 0, at
    for match in TOKEN.finditer(text, at):
        token = match[0]
        if depth == 0 and token[0] in ",]}\n#":
            break
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        end = end if token.isspace() else match.end()
    return end
