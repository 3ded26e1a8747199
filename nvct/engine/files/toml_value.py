# SPDX-License-Identifier: Apache-2.0
"""TOML values and keys as text, and whether two values are the same."""

from __future__ import annotations

import datetime as dt
import re

from nvct.errors import EngineConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class Noted(str):
    """A string that gets a comment if it is added on a line of its own."""

    __slots__ = ("note",)

    note: str

    @classmethod
    def of(cls, text: str, note: str) -> Noted:
        """Return a string with a comment."""
        made = cls(text)
        made.note = note
        return made


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


def same(one: object, other: object) -> bool:
    """Report whether two values are the same: true is not 1, 1 is not 1.0, nan is nan."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return str(one) == str(other)
    if type(one) is not type(other):
        return False
    return one == other or (one != one and other != other)  # noqa: PLR0124 nan
