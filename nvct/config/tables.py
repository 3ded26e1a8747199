# SPDX-License-Identifier: Apache-2.0
"""Finds, compares and reduces the plain values that a JSON or TOML file holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias


class Absent:
    """The value of a key that is missing, or is to be removed."""


ABSENT = Absent()

Path: TypeAlias = tuple[str, ...]  # the names that lead to a key in a file
Table: TypeAlias = dict[str, object]
KeyEdit: TypeAlias = tuple[Path, object]  # TOML merges a dict into a table; ABSENT removes the key


def find(document: object, path: Iterable[str]) -> object:
    """Return the value at a path, ABSENT if there is none."""
    for name in path:
        if not isinstance(document, dict) or name not in document:
            return ABSENT
        document = document[name]
    return document


def subtable(document: object, path: Iterable[str]) -> Table:
    """Return the table at a path, {} if there is none."""
    value = find(document, path)
    return value if isinstance(value, dict) else {}


def string(table: object, key: str) -> str:
    """Return a string of a table, "" for anything else."""
    value = find(table, (key,))
    return value if isinstance(value, str) else ""


def strings(table: object, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a list of a table as strings, a default for anything else."""
    values = find(table, (key,))
    return tuple(map(str, values)) if isinstance(values, list) else default


def reduced(table: Mapping[str, object], means_nothing: Callable[[str, object], bool]) -> Table:
    """Return a table without the keys and values, at any depth, that mean nothing."""
    inner = {
        key: reduced(value, means_nothing) if isinstance(value, dict) else value
        for key, value in table.items()
    }
    return {key: value for key, value in inner.items() if not means_nothing(key, value)}


def pruned(table: Table) -> Table:
    """Return a table without empty tables, which mean nothing."""
    return reduced(table, lambda _key, value: value == {})


def has_values(table: Table) -> bool:
    """Report whether a table holds a value, at any depth."""
    return bool(pruned(table))


def same(first: object, second: object) -> bool:
    """Report whether two values have equal types and values: true is not 1, but nan is nan."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    if type(first) is not type(second):
        return False
    return first == second or (first != first and second != second)  # noqa: PLR0124 nan
