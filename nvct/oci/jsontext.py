# SPDX-License-Identifier: Apache-2.0
"""Parses JSON with the C scanner alone, and writes JSON.

Hot: `import json` costs 5 ms, its C scanner 0.3 ms. The nesting of a text is checked before the
scanner recurses into it: CPython's own limit (10,000 levels in 3.12 and 3.13) assumes a stack of
8 MiB; with a RLIMIT_STACK of 256 KiB the shim would die of SIGSEGV.
"""

from __future__ import annotations

from nvct.errors import DocumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
SPACE = " \t\n\r"
DEPTH_LIMIT = 200
"""Nested arrays and objects. config.json of runc and Docker has less than 10 levels."""
OTHERS = bytes([code for code in range(256) if code not in b"[]{}"])
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
MALFORMED = (StopIteration, ValueError, IndexError, RecursionError, SystemError)
"""Exceptions of the C scanner for malformed text. Up to Python 3.12 it fails without setting one
if json.decoder is not loaded; the interpreter turns that into a SystemError."""


class _Context:
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
    raise ValueError(f"{name} is not valid JSON")


class DuplicateError(Exception):
    """An object has two members of the same name."""


def unique(pairs: list[tuple[str, Json]]) -> Json:
    """Return an object; DuplicateError: Go uses the last one, other parsers the first."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise DuplicateError(name)
            names.add(name)
    return members


def scanner(
    pairs: Callable[[list[tuple[str, Json]]], Json] | None = None,
) -> Callable[[str, int], tuple[Json, int]]:
    """Return the C scanner; `pairs` makes each object from its members."""
    from _json import make_scanner

    scan: Callable[[str, int], tuple[Json, int]] = make_scanner(_Context(pairs))  # type: ignore[arg-type]  # any object with these attributes will do
    return scan


def check_depth(text: str, source: str) -> None:
    """Raise DocumentError for more than DEPTH_LIMIT levels before the first syntax error."""
    if text.count("[") + text.count("{") <= DEPTH_LIMIT:
        return
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(text.split('"')[::2])  # of strings
    depth = 0
    for code in outside.encode("utf-8", "surrogatepass").translate(None, OTHERS):
        depth += STEP[code]
        if depth > DEPTH_LIMIT:
            raise DocumentError(f"{source} is not JSON: it is nested too deeply")


def parse(text: str, source: str) -> Json:
    """Parse a JSON document; `source` is its name in errors.

    Raises DocumentError if the text is not JSON, or has characters after its end.
    """
    check_depth(text, source)
    return parse_trusted(text, source)


def parse_trusted(text: str, source: str) -> Json:
    """Parse a JSON document that nvct wrote, without the check of its depth.

    nvct's files have less than ten levels, whatever they were compiled from. Raises DocumentError
    if the text is not JSON, or has characters after its end.
    """
    try:
        value, end = scanner()(text, skip(text, 0))
    except MALFORMED as error:
        raise DocumentError(f"{source} is not JSON: {reason(error)}") from error
    if skip(text, end) != len(text):
        raise DocumentError(f"{source} is not JSON: something follows its end at {end}")
    return value


def reason(error: BaseException) -> str:
    """Return why a text is malformed, by one of MALFORMED."""
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
    """Return plain data (dicts, lists, strings, numbers, booleans, None) as JSON.

    Raises TypeError for another type, or a number that is not finite.
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
    if isinstance(value, float) and value - value == 0:  # finite
        return repr(value)
    raise TypeError(f"{type(value).__name__} is not valid JSON")


def skip(text: str, pos: int) -> int:
    """Return the first position at or after `pos` without white space."""
    size = len(text)
    while pos < size and text[pos] in SPACE:
        pos += 1
    return pos
