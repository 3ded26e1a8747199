# SPDX-License-Identifier: Apache-2.0
"""Writes YAML documents of tables, lists, strings, integers and booleans.

Contract: every parser of YAML 1.1 or 1.2 reads the same values. A string is plain only if no
parser can read it as another type; all others are in double quotes. PyYAML's own writer takes ten
times as long, half of the time to write a spec, and quotes less than go-yaml needs. The tests
compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# Begins like a path, a word or an option; has no blanks, quotes and indicators. A colon is
# permitted only inside.
_PLAIN = re.compile(r"(?:--?)?[A-Za-z_/](?:[A-Za-z0-9_/.=+@-]|:(?=[A-Za-z0-9_/.:-]))*(?<!:)")
# Words that YAML 1.1 parsers read as a boolean or null (yaml.org/type/bool.html).
_WORDS = frozenset(("y", "n", "yes", "no", "true", "false", "on", "off", "null"))
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def dumps(document: dict[str, Any]) -> str:
    """Return a document, with its start marker.

    Raises:
        TypeError: the document contains a value of another type.
    """
    return "\n".join(["---", *(_table(document, "") if document else ["{}"]), ""])


def string(text: str) -> str:
    """Return a string as a scalar."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return f'"{"".join(map(_character, text))}"'


def _character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if " " <= character <= "~":
        return character
    code = ord(character)
    # U+FEFF is a byte order mark, U+2028 a line break: only printable characters are plain.
    if character.isprintable() and 0xA0 <= code < 0xD800:
        return character
    return (
        f"\\x{code:02X}"
        if code < 0x100
        else f"\\u{code:04X}"
        if code < 0x10000
        else f"\\U{code:08X}"
    )


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"  # empty; others are written in lines
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")


def _table(table: dict[str, Any], indent: str) -> Iterator[str]:
    for key, value in table.items():
        head = f"{indent}{string(key)}:"
        if value and isinstance(value, dict):
            yield head
            yield from _table(value, indent + "  ")
        elif value and isinstance(value, list):
            yield head
            yield from _list(value, indent)
        else:
            yield f"{head} {_scalar(value)}"


def _list(items: list[Any], indent: str) -> Iterator[str]:
    for item in items:
        if item and isinstance(item, (dict, list)):
            inner = indent + "  "
            lines = _table(item, inner) if isinstance(item, dict) else _list(item, inner)
            yield f"{indent}- {next(lines)[len(inner) :]}"
            yield from lines
        else:
            yield f"{indent}- {_scalar(item)}"
