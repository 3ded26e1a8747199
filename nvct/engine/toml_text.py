# SPDX-License-Identifier: Apache-2.0
"""TOML values and keys as text, in the manner of the file that they go into."""

from __future__ import annotations

import datetime as dt
import re

from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NAMED = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}


class Noted(str):
    """A string that gets a comment behind it where it is added on a line of its own."""

    __slots__ = ("note",)

    note: str

    @classmethod
    def of(cls, text: str, note: str) -> Noted:
        """Make one."""
        made = cls(text)
        made.note = note
        return made


def key(name: str, quote: str = '"') -> str:
    """Return one part of a key, quoted only where it has to be."""
    return name if _BARE.fullmatch(name) else string(name, quote)


def string(text: str, quote: str = '"') -> str:
    """Return a string, between single quotes if these are the file's manner and it can be."""
    if quote == "'" and "'" not in text and text.isprintable():
        return f"'{text}'"
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def value(item: object, quote: str = '"') -> str:
    """Return a value on one line.

    Raises:
        EngineConfigError: TOML has no such value.
    """
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return string(item, quote)
    if isinstance(item, (int, float)):
        return repr(item)
    if isinstance(item, (dt.datetime, dt.date, dt.time)):
        return item.isoformat()
    if isinstance(item, (list, tuple)):
        return "[" + ", ".join(value(inner, quote) for inner in item) + "]"
    if isinstance(item, dict):
        return inline(item, quote)
    raise EngineConfigError(f"{item!r:.80} is no value that TOML has")


def inline(table: Mapping[str, object], quote: str = '"') -> str:
    """Return a table on one line.

    Raises:
        EngineConfigError: TOML has no such value.
    """
    if not table:
        return "{}"
    pairs = (f"{key(name, quote)} = {value(item, quote)}" for name, item in table.items())
    return "{ " + ", ".join(pairs) + " }"
