# SPDX-License-Identifier: Apache-2.0
"""Documents of which a reader needs a part: a head, and rows that are parsed when asked for.

Hot. A plan holds every GPU of the machine, and a container asks for one: with eight GPUs the rest
is two thirds of it, with 64 in seven parts each nearly all. A row is a line of JSON. What is taken
apart is what plans have:

- "specs" and "edits", lists: a row an element;
- "devices", a dict: its names, in the head, say which row is theirs; equal ones share one;
- "mounts" and "cache" in the edits of a spec and in their parts: who gets a view of the driver
  reads none.

The head's member "rows" says where they are. Whatever else a document holds stays in the head.
Contract: `join` of `split` is the document again; what is read lazily behaves as the list or dict
that it stands for, as far as the hot side uses it.
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
NAMED = "devices"
MOUNTS = "mounts"
LATE = (MOUNTS, "cache")


class Rows:
    """Lines that are values, a list of them: all rows of a document, or those of one member.

    Args:
        lines: of the document.
        first, count: which of them.
        mounts: the first that holds mounts.
    """

    __slots__ = ("_count", "_first", "_lines", "_made", "_mounts")

    def __init__(self, lines: list[str], first: int, count: int, mounts: int) -> None:
        """Keep them; nothing is parsed yet."""
        self._lines = lines
        self._first = first
        self._count = count
        self._mounts = mounts
        self._made: dict[int, Value] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def __getitem__(self, index: int) -> Value:
        """Return one, the same object each time.

        Raises:
            IndexError: there is none.
            DocumentError: the line is not JSON.
        """
        if index not in self._made:
            if not 0 <= index < self._count:
                raise IndexError(index)
            value = jsontext.parse(self._lines[self._first + index], "a row")
            self._made[index] = self._with_mounts(value)
        return self._made[index]

    def __iter__(self) -> Iterator[Value]:
        """Yield all."""
        return map(self.__getitem__, range(self._count))

    def _with_mounts(self, value: Value) -> Value:
        for edits in _edits_of(value):
            for key in LATE:
                place = edits.get(key)
                if isinstance(place, int):
                    edits[key] = Mounts(self._lines[self._mounts + place])
        return value


class Mounts:
    """The mounts of edits, a list in one row."""

    __slots__ = ("_line", "_made")

    def __init__(self, line: str) -> None:
        """Keep the line."""
        self._line = line
        self._made: list[Value] | None = None

    def whole(self) -> list[Value]:
        """Return the list.

        Raises:
            DocumentError: the line is not JSON.
        """
        if self._made is None:
            value: Value = jsontext.parse(self._line, "a row")
            self._made = list(value)
        return self._made

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.whole())

    def __getitem__(self, index: int) -> Value:
        """Return one."""
        return self.whole()[index]

    def __iter__(self) -> Iterator[Value]:
        """Yield all."""
        return iter(self.whole())


class Names:
    """A dict whose values are rows."""

    __slots__ = ("_places", "_rows")

    def __init__(self, places: dict[str, int], rows: Rows) -> None:
        """Keep both."""
        self._places = places
        self._rows = rows

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a name."""
        return name in self._places

    def __len__(self) -> int:
        """Return how many names there are."""
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._places)

    def __getitem__(self, name: str) -> Value:
        """Return a name's value.

        Raises:
            KeyError: there is no such name.
        """
        return self._rows[self._places[name]]

    def get(self, name: str, default: Value = None) -> Value:
        """Return a name's value, or the default where there is no such name."""
        return self[name] if name in self._places else default

    def items(self) -> ItemsView[str, Value]:
        """Return names and values, all parsed."""
        return self.whole().items()

    def whole(self) -> dict[str, Value]:
        """Return the dict."""
        return {name: self._rows[place] for name, place in self._places.items()}


def split(document: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the head of a document and its rows."""
    head = join(document)
    lines: list[str] = []
    rows: dict[str, object] = {}
    mounts: list[str] = []
    for key in LISTS:
        values = head.get(key)
        if isinstance(values, list) and values:
            del head[key]
            rows[key] = len(lines), len(values)
            lines += [jsontext.dumps(_without_mounts(value, mounts)) for value in values]
    named = head.get(NAMED)
    if isinstance(named, dict) and named:
        del head[NAMED]
        distinct: dict[str, int] = {}
        places = {
            n: distinct.setdefault(jsontext.dumps(v), len(distinct)) for n, v in named.items()
        }
        rows[NAMED] = len(lines), len(distinct), places
        lines += distinct
    if rows:
        head[ROWS] = {**rows, MOUNTS: len(lines)}
    return head, lines + mounts


def join(document: Mapping[str, object]) -> dict[str, object]:
    """Return a document as plain lists and dicts, whatever of it is rows."""
    found = dict(document)
    for key in LISTS:
        values = found.get(key)
        if isinstance(values, Rows):
            found[key] = [_plain(value) for value in values]
    named = found.get(NAMED)
    if isinstance(named, Names):
        found[NAMED] = named.whole()
    return found


def read(text: str) -> dict[str, object]:
    """Return a document from its text, a head and the lines of its rows.

    Raises:
        DocumentError: the head is not a JSON object, or does not say where the rows are.
    """
    lines = text.split("\n")
    head = jsontext.parse(lines[0], "a head")
    if not isinstance(head, dict):
        raise DocumentError("a head is no JSON object")
    found: dict[str, object] = dict(head)
    places: Value = found.pop(ROWS, None)
    if places is None:
        return found
    del lines[0]
    try:
        mounts = places[MOUNTS]
        for key in LISTS:
            if key in places:
                first, count = places[key]
                found[key] = Rows(lines, first, count, mounts)
        if NAMED in places:
            first, count, names = places[NAMED]
            found[NAMED] = Names(names, Rows(lines, first, count, mounts))
    except (TypeError, LookupError, ValueError) as error:
        raise DocumentError("a head does not say where its rows are") from error
    return found


def _edits_of(value: Value) -> list[dict[str, Value]]:
    """Return the edits of a spec and their parts; none of anything else."""
    edits = value.get("edits") if isinstance(value, dict) else None
    if not isinstance(edits, dict):
        return []
    return [one for one in (edits, *edits.get("parts", {}).values()) if isinstance(one, dict)]


def _without_mounts(value: Value, mounts: list[str]) -> Value:
    """Return a copy of a spec with numbers in the place of mounts, which are added to `mounts`."""
    copy = _copy(value)
    for one in _edits_of(copy):
        for key in LATE:
            if isinstance(one.get(key), list) and one[key]:
                mounts.append(jsontext.dumps(one[key]))
                one[key] = len(mounts) - 1
    return copy


def _plain(value: Value) -> Value:
    """Return a copy of a spec whose mounts are lists; anything else as it is."""
    copy = _copy(value)
    for one in _edits_of(copy):
        for key in LATE:
            if isinstance(one.get(key), Mounts):
                one[key] = one[key].whole()
    return copy


def _copy(value: Value) -> Value:
    """Return a copy of a spec as deep as its mounts; anything else as it is."""
    if not _edits_of(value):
        return value
    edits = dict(value["edits"])
    if "parts" in edits:
        edits["parts"] = {name: dict(part) for name, part in edits["parts"].items()}
    return {**value, "edits": edits}
