# SPDX-License-Identifier: Apache-2.0
"""JSON read for the places of its values, and edited without touching any other byte.

Hot: `import json` costs 5 ms, the C scanner behind it 0.3 ms. A document is walked by hand only
along the members that may change; everything else is skipped by the C scanner. Unknown members,
number formats, key order and white space survive because they are never written again.
"""

from __future__ import annotations

from nvct.errors import DocumentError
from nvct.oci.jsondepth import check_depth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
    Want: TypeAlias = "dict[str, Want | None]"
    Cut: TypeAlias = tuple[int, int, str]
    Path: TypeAlias = tuple[str, ...]

SPACE = " \t\n\r"
EACH = "[]"
"""Marks, in a table of wanted members, an array whose elements' places are wanted."""
ELEMENTS: Want = {EACH: None}
SKIPPED: Want = {"": None}
"""What no table names."""
MALFORMED = (StopIteration, ValueError, IndexError, RecursionError, SystemError)
"""What malformed text makes the C scanner raise; up to Python 3.12 it has no exception to raise
while json.decoder is not loaded, and the interpreter makes that a SystemError."""


class _Context:
    """What `_json.make_scanner` reads its settings from."""

    __slots__ = (
        "memo", "object_hook", "object_pairs_hook", "parse_constant", "parse_float", "parse_int",
        "strict",
    )  # fmt: skip

    def __init__(self, pairs: Callable[[list[tuple[str, Json]]], Json] | None = None) -> None:
        self.strict = True
        self.object_hook = None
        self.object_pairs_hook = pairs
        self.parse_float = float
        self.parse_int = int
        self.parse_constant = _refuse_constant
        self.memo: dict[str, str] = {}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class _TwiceError(Exception):
    """An object names a member twice."""


def _once(pairs: list[tuple[str, Json]]) -> Json:
    """Make an object of its members; of two of a name Go takes the last, others the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _TwiceError(name)
            seen.add(name)
    return found


def _scanner(
    pairs: Callable[[list[tuple[str, Json]]], Json] | None = None,
) -> Callable[[str, int], tuple[Json, int]]:
    from _json import make_scanner

    scan: Callable[[str, int], tuple[Json, int]] = make_scanner(_Context(pairs))  # type: ignore[arg-type]  # any object with these attributes will do
    return scan


def parse(text: str, source: str) -> Json:
    """Parse one JSON document; an error names its source.

    Raises:
        DocumentError: it is no JSON, or has something behind its end.
    """
    check_depth(text, source)
    try:
        value, end = _scanner()(text, _skip(text, 0))
    except MALFORMED as error:
        raise DocumentError(f"{source} is not JSON: {_reason(error)}") from error
    if _skip(text, end) != len(text):
        raise DocumentError(f"{source} is not JSON: something follows its end at {end}")
    return value


def _reason(error: BaseException) -> str:
    if isinstance(error, StopIteration):
        return f"a value is missing at {error.value}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, IndexError):
        return "it ends too early"
    if isinstance(error, SystemError):
        return "it is malformed"
    return str(error)


def quote(value: str) -> str:
    """Return a string as JSON, ASCII only."""
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(value)


def dumps(value: object) -> str:
    """Return plain data (dicts, lists, strings, integers, booleans, None) as JSON.

    Raises:
        TypeError: it holds something else.
    """
    if isinstance(value, str):
        return quote(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(k)}:{dumps(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([dumps(v) for v in value]) + "]"
    raise TypeError(f"{type(value).__name__} is no JSON")


def _skip(text: str, pos: int) -> int:
    size = len(text)
    while pos < size and text[pos] in SPACE:
        pos += 1
    return pos


class Node:
    """One value of a document and its place in the text.

    Attributes:
        start, end: the value is text[start:end].
        members: of a walked object, by key; else None.
        elements: of a walked array; else None.
        value: of anything else, parsed.
    """

    __slots__ = ("elements", "end", "members", "start", "value")

    def __init__(
        self,
        start: int,
        end: int,
        value: Json = None,
        members: dict[str, Node] | None = None,
        elements: list[Node] | None = None,
    ) -> None:
        self.start = start
        self.end = end
        self.value = value
        self.members = members
        self.elements = elements


class Document:
    """A JSON object whose wanted members can be read and edited in place.

    Reads return the text as it came; edits show in `render`. Edits of one path add up: the last
    `put` counts, appended elements follow rewritten ones. No edited path lies within another one.
    """

    __slots__ = (
        "_added",
        "_puts",
        "_rewritten",
        "_scan",
        "_scan_wanted",
        "root",
        "source",
        "text",
    )

    def __init__(self, text: str, want: Want, source: str) -> None:
        """Walk text along the wanted members.

        Raises:
            DocumentError: the text is no JSON object, or names a wanted member twice, or one of
                an object in there.
        """
        check_depth(text, source)
        self.text = text
        self.source = source
        self._scan = _scanner()
        self._scan_wanted = _scanner(_once)
        self._added: dict[Path, list[str]] = {}
        self._rewritten: dict[Path, list[str]] = {}
        self._puts: dict[Path, str] = {}
        try:
            self.root = self._walk(_skip(text, 0), want)
            if _skip(text, self.root.end) != len(text):
                raise ValueError(f"something follows its end at {self.root.end}")
        except MALFORMED as error:
            raise DocumentError(f"{source} is not JSON: {_reason(error)}") from error
        except _TwiceError as error:
            raise DocumentError(f"{source} is ambiguous: {error} stands there twice") from error
        if self.root.members is None:
            raise DocumentError(f"{source} is not a JSON object")

    def _walk(self, pos: int, want: Want | None) -> Node:
        text = self.text
        if want is not None and want is not SKIPPED and text[pos] == "{":
            return self._walk_object(pos, want)
        if want and EACH in want and text[pos] == "[":
            return self._walk_array(pos, want[EACH] or {})
        value, end = (self._scan if want is SKIPPED else self._scan_wanted)(text, pos)
        return Node(pos, end, value)

    def _walk_object(self, start: int, want: Want) -> Node:
        text = self.text
        members: dict[str, Node] = {}
        pos = _skip(text, start + 1)
        if text[pos] == "}":
            return Node(start, pos + 1, members=members)
        while True:
            if text[pos] != '"':
                raise ValueError(f"a member name is missing at {pos}")
            key, pos = self._scan(text, pos)
            pos = _skip(text, pos)
            if text[pos] != ":":
                raise ValueError(f"a colon is missing at {pos}")
            child = self._walk(_skip(text, pos + 1), want.get(str(key), SKIPPED))
            self._refuse_folded((str(key),), want)
            if key in want and key in members:
                raise DocumentError(f"{self.source} is ambiguous: {key} stands there twice")
            members[str(key)] = child
            pos = _skip(text, child.end)
            if text[pos] == "}":
                break
            if text[pos] != ",":
                raise ValueError(f"a comma is missing at {pos}")
            pos = _skip(text, pos + 1)
        return Node(start, pos + 1, members=members)

    def _refuse_folded(self, keys: Iterable[str], known: Want) -> None:
        """Refuse a key that is a known one but for its case: runc takes it (Go), crun does not."""
        for key in keys:
            if key not in known and key.casefold() in map(str.casefold, known):
                raise DocumentError(f"{self.source} is ambiguous: {key} is in the wrong case")

    def _walk_array(self, start: int, known: Want) -> Node:
        text = self.text
        elements: list[Node] = []
        pos = _skip(text, start + 1)
        if text[pos] != "]":
            while True:
                value, end = self._scan_wanted(text, pos)
                if known and isinstance(value, dict):
                    self._refuse_folded(value, known)
                elements.append(Node(pos, end, value))
                pos = _skip(text, end)
                if text[pos] == "]":
                    break
                if text[pos] != ",":
                    raise ValueError(f"a comma is missing at {pos}")
                pos = _skip(text, pos + 1)
        return Node(start, pos + 1, elements=elements)

    def find(self, path: Path) -> Node | None:
        """Return the node of a walked path, None where there is none or null stands there."""
        node: Node | None = self.root
        for key in path:
            if node is None or node.members is None:
                return None
            node = node.members.get(key)
        if node is None or (node.members is None and node.elements is None and node.value is None):
            return None
        return node

    def value(self, path: Path) -> Json:
        """Return the parsed value of a member that was not walked into, else None."""
        node = self.find(path)
        return None if node is None else node.value

    def elements(self, path: Path) -> list[Node]:
        """Return the elements of the array at path, an empty list where there is none.

        Raises:
            DocumentError: something else than an array stands there.
        """
        node = self.find(path)
        if node is None:
            return []
        if node.elements is None:
            raise DocumentError(f"{self.source}: {'.'.join(path)} is not an array")
        return node.elements

    def append(self, path: Path, fragments: list[str]) -> None:
        """Append elements, given as JSON text, to the array at path; what is missing is made.

        Raises:
            DocumentError: something else than an array stands there.
        """
        if fragments:
            self.elements(path)
            self._added.setdefault(path, []).extend(fragments)

    def rewrite(self, path: Path, fragments: list[str]) -> None:
        """Replace the elements of the array at path, given as JSON text.

        Raises:
            DocumentError: something else than an array stands there.
        """
        self.elements(path)
        self._rewritten[path] = fragments

    def put(self, path: Path, fragment: str) -> None:
        """Set the member at path to a JSON text, replacing what stands there."""
        self._puts[path] = fragment

    def fragment(self, node: Node) -> str:
        """Return the text of a node."""
        return self.text[node.start : node.end]

    @property
    def changed(self) -> bool:
        """Whether anything was edited."""
        return bool(self._puts or self._rewritten or self._added)

    def render(self) -> str:
        """Return the text with all edits in it.

        Raises:
            DocumentError: a parent of a new member is no object.
        """
        cuts: list[Cut] = []
        new: dict[Path, str] = {}
        for path in {**self._rewritten, **self._added}:
            self._edit_array(path, cuts, new)
        for path, fragment in self._puts.items():
            node = self.find(path)
            if node is None:
                new[path] = fragment
            else:
                cuts.append((node.start, node.end, fragment))
        self._insert(new, cuts)
        parts: list[str] = []
        done = 0
        for start, end, text in sorted(cuts):
            parts += (self.text[done:start], text)
            done = end
        parts.append(self.text[done:])
        return "".join(parts)

    def _edit_array(self, path: Path, cuts: list[Cut], new: dict[Path, str]) -> None:
        node = self.find(path)
        added = ",".join(self._added.get(path, ()))
        if node is not None and path not in self._rewritten:
            if node.elements:
                at = node.elements[-1].end
                cuts.append((at, at, "," + added))
            else:
                cuts.append((node.start + 1, node.start + 1, added))
            return
        kept = ",".join(self._rewritten.get(path, ()))
        text = f"[{kept},{added}]" if kept and added else f"[{kept}{added}]"
        if node is None:
            new[path] = text
        else:
            cuts.append((node.start, node.end, text))

    def _insert(self, new: dict[Path, str], cuts: list[Cut]) -> None:
        """Turn new members into one insertion for each object that is there."""
        trees: dict[Path, dict[str, object]] = {}
        for path, text in new.items():
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
        node = self.find(parent)
        if node is None or node.members is None:
            raise DocumentError(f"{self.source}: {'.'.join(parent)} is not an object")
        added = []
        for key, value in branch.items():
            old = node.members.get(key)
            if old is not None:  # null stood there
                cuts.append((old.start, old.end, _text(value)))
            else:
                added.append(f"{quote(key)}:{_text(value)}")
        if added:
            text = ",".join(added)
            at = max((m.end for m in node.members.values()), default=node.start + 1)
            cuts.append((at, at, "," + text if node.members else text))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(k)}:{_text(v)}" for k, v in value.items()]) + "}"
    raise TypeError(value)
