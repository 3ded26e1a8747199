# SPDX-License-Identifier: Apache-2.0
"""JSON documents with a head and rows, which are parsed on first use.

Hot. A plan contains all GPUs of the machine, and a container requests one: with eight GPUs two
thirds of the plan are not needed, with 64 nearly all of it. A row is one line of JSON. Rows are:

- each element of "specs" and "edits";
- each distinct value of "devices"; the head maps names to rows;
- "mounts" and "cache" in the edits of specs and in their parts: a farm view replaces them.

Member "rows" of the head has the row numbers; all other members are in the head. Contract: `join`
reverses `split`; lazy values support the operations of lists and dicts that the hot side uses.
Only text with a correct checksum is read (`nvct.container.plan.store`): `split` wrote it.

Rows could be strings in one JSON object, parsed by plain functions. Reading what a create of one
GPU needs then takes 0.44 ms instead of 0.33 with 8 GPUs, and 1.5 ms instead of 0.55 with 64, which
is more than 10 % of a create: the C scanner copies each row, and unescapes it.
"""

from __future__ import annotations

from nvct.errors import DocumentError
from nvct.oci import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterator, Mapping
    from typing import Any, TypeAlias

    Value: TypeAlias = Any  # of JSON

ROWS = "rows"
LISTS = ("specs", "edits")
DEVICES = "devices"
MOUNTS = "mounts"
LAZY_MEMBERS = (MOUNTS, "cache")


class LazyList:
    """A list of consecutive rows among the lines of a document."""

    __slots__ = ("_count", "_first", "_lines", "_mounts", "_values")

    def __init__(self, lines: list[str], first: int, count: int, mounts: int) -> None:
        self._lines = lines
        self._first = first
        self._count = count
        self._mounts = mounts
        self._values: dict[int, Value] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Value:
        """Return an element, the same object each time."""
        if index not in self._values:
            if not 0 <= index < self._count:
                raise IndexError(index)
            value = jsontext.parse_trusted(self._lines[self._first + index], "a row")
            self._values[index] = self._with_mounts(value)
        return self._values[index]

    def __iter__(self) -> Iterator[Value]:
        return map(self.__getitem__, range(self._count))

    def _with_mounts(self, value: Value) -> Value:
        for edits in _edits_of(value):
            for key in LAZY_MEMBERS:
                row = edits.get(key)
                if isinstance(row, int):
                    edits[key] = LazyMounts(self._lines[self._mounts + row])
        return value


class LazyMounts:
    """The mounts of edits, a list in one row."""

    __slots__ = ("_line", "_mounts")

    def __init__(self, line: str) -> None:
        self._line = line
        self._mounts: list[Value] | None = None

    def parsed(self) -> list[Value]:
        """Return the list. Raises DocumentError if the row is not JSON."""
        if self._mounts is None:
            value: Value = jsontext.parse_trusted(self._line, "a row")
            self._mounts = list(value)
        return self._mounts

    def __len__(self) -> int:
        return len(self.parsed())

    def __getitem__(self, index: int) -> Value:
        return self.parsed()[index]

    def __iter__(self) -> Iterator[Value]:
        return iter(self.parsed())


class LazyDict:
    """A dict with a row for each value."""

    __slots__ = ("_indexes", "_rows")

    def __init__(self, indexes: dict[str, int], rows: LazyList) -> None:
        self._indexes = indexes
        self._rows = rows

    def __contains__(self, name: object) -> bool:
        return name in self._indexes

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._indexes)

    def __getitem__(self, name: str) -> Value:
        return self._rows[self._indexes[name]]

    def get(self, name: str, default: Value = None) -> Value:
        """Return the value of a name, or the default if there is no such name."""
        return self[name] if name in self._indexes else default

    def items(self) -> ItemsView[str, Value]:
        """Return names and values; all rows are parsed."""
        return self.parsed().items()

    def parsed(self) -> dict[str, Value]:
        """Return the dict."""
        return {name: self._rows[index] for name, index in self._indexes.items()}


def split(document: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the head of a document and its rows."""
    head = join(document)
    lines: list[str] = []
    rows: dict[str, object] = {}
    mounts: list[str] = []
    for key in LISTS:
        elements = head.get(key)
        if isinstance(elements, list) and elements:
            del head[key]
            rows[key] = len(lines), len(elements)
            lines += [jsontext.dumps(_without_mounts(value, mounts)) for value in elements]
    devices = head.get(DEVICES)
    if isinstance(devices, dict) and devices:
        del head[DEVICES]
        distinct: dict[str, int] = {}
        indexes = {
            name: distinct.setdefault(jsontext.dumps(value), len(distinct))
            for name, value in devices.items()
        }
        rows[DEVICES] = len(lines), len(distinct), indexes
        lines += distinct
    if rows:
        head[ROWS] = {**rows, MOUNTS: len(lines)}
    return head, lines + mounts


def join(document: Mapping[str, object]) -> dict[str, object]:
    """Return a document with plain lists and dicts instead of lazy ones."""
    joined = dict(document)
    for key in LISTS:
        values = joined.get(key)
        if isinstance(values, LazyList):
            joined[key] = [_with_plain_mounts(value) for value in values]
    devices = joined.get(DEVICES)
    if isinstance(devices, LazyDict):
        joined[DEVICES] = devices.parsed()
    return joined


def read(text: str) -> dict[str, object]:
    """Return a document from the line of its head and those of its rows. Raises DocumentError."""
    lines = text.split("\n")
    head = jsontext.parse_trusted(lines[0], "a head")
    if not isinstance(head, dict):
        raise DocumentError("the first line of a plan is not a JSON object")
    document: dict[str, object] = dict(head)
    rows: Value = document.pop(ROWS, None)
    if rows is None:
        return document
    del lines[0]
    try:
        mounts = rows[MOUNTS]
        for key in LISTS:
            if key in rows:
                first, count = rows[key]
                document[key] = LazyList(lines, first, count, mounts)
        if DEVICES in rows:
            first, count, names = rows[DEVICES]
            document[DEVICES] = LazyDict(names, LazyList(lines, first, count, mounts))
    except (TypeError, LookupError, ValueError) as error:
        raise DocumentError("a head has wrong row numbers") from error
    return document


def _edits_of(value: Value) -> list[dict[str, Value]]:
    """Return the edits of a spec and their parts; none for other values."""
    edits = value.get("edits") if isinstance(value, dict) else None
    if not isinstance(edits, dict):
        return []
    return [e for e in (edits, *edits.get("parts", {}).values()) if isinstance(e, dict)]


def _without_mounts(value: Value, mounts: list[str]) -> Value:
    """Return a copy of a spec with row numbers for its mounts; the rows are added to `mounts`."""
    copy = _copy(value)
    for edits in _edits_of(copy):
        for key in LAZY_MEMBERS:
            if isinstance(edits.get(key), list) and edits[key]:
                mounts.append(jsontext.dumps(edits[key]))
                edits[key] = len(mounts) - 1
    return copy


def _with_plain_mounts(value: Value) -> Value:
    copy = _copy(value)
    for edits in _edits_of(copy):
        for key in LAZY_MEMBERS:
            if isinstance(edits.get(key), LazyMounts):
                edits[key] = edits[key].parsed()
    return copy


def _copy(value: Value) -> Value:
    if not _edits_of(value):
        return value
    edits = dict(value["edits"])
    if "parts" in edits:
        edits["parts"] = {name: dict(part) for name, part in edits["parts"].items()}
    return {**value, "edits": edits}
