# SPDX-License-Identifier: Apache-2.0
"""A JSON object with the positions of values, edited without a change to any other byte.

Hot. Python code parses only the members that may change; the C scanner handles all others. Unknown
members, number formats, key order and white space are preserved because their text is copied.
"""

from __future__ import annotations

from nvct.errors import DocumentError
from nvct.oci.jsontext import (
    MALFORMED,
    DuplicateError,
    check_depth,
    quote,
    reason,
    scanner,
    skip,
    unique,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from nvct.oci.jsontext import Json

    Schema: TypeAlias = "dict[str, Schema | None]"
    Cut: TypeAlias = tuple[int, int, str]
    Path: TypeAlias = tuple[str, ...]

EACH = "[]"  # The key, in a schema, of an array whose elements are parsed with positions
ELEMENTS: Schema = {EACH: None}
SKIPPED: Schema = {"": None}  # The schema of all other members


class Element:
    """A value of a document and its position in the text.

    Attributes:
        start, end: the text of the value is text[start:end].
        members: of an object in the schema, by key; else None.
        elements: of an array in the schema; else None.
    """

    __slots__ = ("elements", "end", "members", "start", "value")

    def __init__(
        self,
        start: int,
        end: int,
        value: Json = None,
        members: dict[str, Element] | None = None,
        elements: list[Element] | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.value = value
        self.members = members
        self.elements = elements


class Document:
    """A JSON object; the members of its schema can be read, and edited in place.

    Reads return original values; `render` applies edits. Edits of a path are combined: the last
    `put` wins, appended elements follow rewritten ones. No edited path may be below another one.
    Raises DocumentError if the text is not a JSON object, or repeats a member of the schema or of
    an object in it.
    """

    __slots__ = (
        "_added", "_puts", "_rewritten", "_scan", "_scan_unique", "root", "source",
        "text",
    )  # fmt: skip

    def __init__(self, text: str, schema: Schema, source: str) -> None:
        check_depth(text, source)
        self.text = text
        self.source = source
        self._scan = scanner()
        self._scan_unique = scanner(unique)
        self._added: dict[Path, list[str]] = {}
        self._rewritten: dict[Path, list[str]] = {}
        self._puts: dict[Path, str] = {}
        try:
            self.root = self._walk(skip(text, 0), schema)
            if skip(text, self.root.end) != len(text):
                raise ValueError(f"something follows its end at {self.root.end}")
        except MALFORMED as error:
            raise DocumentError(f"{source} is not JSON: {reason(error)}") from error
        except DuplicateError as error:
            raise DocumentError(f"{source} is ambiguous: duplicate key {error}") from error
        if self.root.members is None:
            raise DocumentError(f"{source} is not a JSON object")

    def _walk(self, pos: int, schema: Schema | None) -> Element:
        text = self.text
        if schema is not None and schema is not SKIPPED and text[pos] == "{":
            return self._walk_object(pos, schema)
        if schema and EACH in schema and text[pos] == "[":
            return self._walk_array(pos, schema[EACH] or {})
        value, end = (self._scan if schema is SKIPPED else self._scan_unique)(text, pos)
        return Element(pos, end, value)

    def _walk_object(self, start: int, schema: Schema) -> Element:
        text = self.text
        members: dict[str, Element] = {}
        pos = skip(text, start + 1)
        if text[pos] == "}":
            return Element(start, pos + 1, members=members)
        while True:
            if text[pos] != '"':
                raise ValueError(f"a member name is missing at {pos}")
            key, pos = self._scan(text, pos)
            pos = skip(text, pos)
            if text[pos] != ":":
                raise ValueError(f"a colon is missing at {pos}")
            child = self._walk(skip(text, pos + 1), schema.get(str(key), SKIPPED))
            self._refuse_folded((str(key),), schema)
            if key in schema and key in members:
                raise DocumentError(f"{self.source} is ambiguous: duplicate key {key}")
            members[str(key)] = child
            pos = skip(text, child.end)
            if text[pos] == "}":
                break
            if text[pos] != ",":
                raise ValueError(f"a comma is missing at {pos}")
            pos = skip(text, pos + 1)
        return Element(start, pos + 1, members=members)

    def _refuse_folded(self, keys: Iterable[str], schema: Schema) -> None:
        """Refuse a known key in the wrong case: runc (Go) accepts it, crun does not."""
        for key in keys:
            if key not in schema and key.casefold() in map(str.casefold, schema):
                raise DocumentError(f"{self.source} is ambiguous: {key} is in the wrong case")

    def _walk_array(self, start: int, schema: Schema) -> Element:
        text = self.text
        elements: list[Element] = []
        pos = skip(text, start + 1)
        if text[pos] != "]":
            while True:
                value, end = self._scan_unique(text, pos)
                if schema and isinstance(value, dict):
                    self._refuse_folded(value, schema)
                elements.append(Element(pos, end, value))
                pos = skip(text, end)
                if text[pos] == "]":
                    break
                if text[pos] != ",":
                    raise ValueError(f"a comma is missing at {pos}")
                pos = skip(text, pos + 1)
        return Element(start, pos + 1, elements=elements)

    def find(self, path: Path) -> Element | None:
        """Return the value at a path in the schema, None if it is missing or null."""
        element: Element | None = self.root
        for key in path:
            if element is None or element.members is None:
                return None
            element = element.members.get(key)
        if element is None or (
            element.members is None and element.elements is None and element.value is None
        ):
            return None
        return element

    def value(self, path: Path) -> Json:
        """Return the parsed value at a path, None for objects and arrays in the schema."""
        element = self.find(path)
        return None if element is None else element.value

    def elements(self, path: Path) -> list[Element]:
        """Return the elements of the array at path, [] if missing; DocumentError if no array."""
        element = self.find(path)
        if element is None:
            return []
        if element.elements is None:
            raise DocumentError(f"{self.source}: {'.'.join(path)} is not an array")
        return element.elements

    def append(self, path: Path, fragments: list[str]) -> None:
        """Append elements, as JSON text, to the array at path; missing parents are created.

        Raises DocumentError if the value is not an array.
        """
        if fragments:
            self.elements(path)
            self._added.setdefault(path, []).extend(fragments)

    def rewrite(self, path: Path, fragments: list[str]) -> None:
        """Replace the elements of the array at path by texts; DocumentError if not an array."""
        self.elements(path)
        self._rewritten[path] = fragments

    def replace(
        self, path: Path, is_replaced: Callable[[Json], bool], fragments: list[str]
    ) -> bool:
        """Remove some elements of an array and append texts; return whether any was removed.

        Raises DocumentError if the value is not an array.
        """
        elements = self.elements(path)
        kept = [self.fragment(element) for element in elements if not is_replaced(element.value)]
        if len(kept) == len(elements):
            self.append(path, fragments)
            return False
        self.rewrite(path, kept + fragments)
        return True

    def put(self, path: Path, fragment: str) -> None:
        """Set the member at path to a JSON text."""
        self._puts[path] = fragment

    def fragment(self, element: Element) -> str:
        """Return the text of a value."""
        return self.text[element.start : element.end]

    @property
    def changed(self) -> bool:
        """Whether there are edits."""
        return bool(self._puts or self._rewritten or self._added)

    def render(self) -> str:
        """Return the text with all edits; DocumentError if a new member's parent is no object."""
        cuts: list[Cut] = []
        new_members: dict[Path, str] = {}
        for path in {**self._rewritten, **self._added}:
            self._edit_array(path, cuts, new_members)
        for path, fragment in self._puts.items():
            element = self.find(path)
            if element is None:
                new_members[path] = fragment
            else:
                cuts.append((element.start, element.end, fragment))
        self._insert(new_members, cuts)
        pieces: list[str] = []
        copied_to = 0
        for start, end, text in sorted(cuts):
            pieces += (self.text[copied_to:start], text)
            copied_to = end
        pieces.append(self.text[copied_to:])
        return "".join(pieces)

    def _edit_array(self, path: Path, cuts: list[Cut], new_members: dict[Path, str]) -> None:
        element = self.find(path)
        added = ",".join(self._added.get(path, ()))
        if element is not None and path not in self._rewritten:
            if element.elements:
                at = element.elements[-1].end
                cuts.append((at, at, "," + added))
            else:
                cuts.append((element.start + 1, element.start + 1, added))
            return
        rewritten = ",".join(self._rewritten.get(path, ()))
        text = f"[{rewritten},{added}]" if rewritten and added else f"[{rewritten}{added}]"
        if element is None:
            new_members[path] = text
        else:
            cuts.append((element.start, element.end, text))

    def _insert(self, new_members: dict[Path, str], cuts: list[Cut]) -> None:
        trees: dict[Path, dict[str, object]] = {}
        for path, text in new_members.items():
            depth = len(path) - 1
            while depth and self.find(path[:depth]) is None:
                depth -= 1
            branch = trees.setdefault(path[:depth], {})
            for key in path[depth:-1]:
                branch = branch.setdefault(key, {})  # type: ignore[assignment]  # only dicts are set
            branch[path[-1]] = text
        for parent, branch in trees.items():
            self._insert_members(parent, branch, cuts)

    def _insert_members(self, parent: Path, branch: dict[str, object], cuts: list[Cut]) -> None:
        element = self.find(parent)
        if element is None or element.members is None:
            raise DocumentError(f"{self.source}: {'.'.join(parent)} is not an object")
        added = []
        for key, value in branch.items():
            member = element.members.get(key)
            if member is not None:  # it is null
                cuts.append((member.start, member.end, _text(value)))
            else:
                added.append(f"{quote(key)}:{_text(value)}")
        if added:
            text = ",".join(added)
            at = max((m.end for m in element.members.values()), default=element.start + 1)
            cuts.append((at, at, "," + text if element.members else text))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(k)}:{_text(v)}" for k, v in value.items()]) + "}"
    raise TypeError(value)
