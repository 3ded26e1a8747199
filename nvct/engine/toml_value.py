# SPDX-License-Identifier: Apache-2.0
"""TOML values and keys as text, and whether two values are the same."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping

from nvct.errors import EngineConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Noted(str):
    """A string that gets a comment if it is added on a line of its own."""

    __slots__ = ("note",)

    note: str

    @classmethod
    def of(cls, text: str, note: str) -> Noted:
        """Return a string with a comment."""
        noted = cls(text)
        noted.note = note
        return noted


def key_text(name: str, quote: str = '"') -> str:
    """Return one part of a key, quoted only if necessary."""
    return name if _BARE.fullmatch(name) else value_text(name, quote)


def value_text(value: object, quote: str = '"') -> str:
    """Return a value on one line; strings in single quotes if `quote` is one and they can be.

    Raises:
        EngineConfigError: TOML has no such value.
    """
    import tomlkit

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


def same(first: object, second: object) -> bool:
    """Report whether two values are the same: true is not 1, 1 is not 1.0, nan is nan."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, str) and isinstance(second, str):
        return str(first) == str(second)
    if type(first) is not type(second):
        return False
    return first == second or (first != first and second != second)  # noqa: PLR0124 nan
