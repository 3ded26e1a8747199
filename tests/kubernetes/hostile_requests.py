# SPDX-License-Identifier: Apache-2.0
"""Requests to NVML's worker with hostile arguments, made from the types of its verbs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nvct.agent.nvml.supervisor import CALLS

TEXTS = (
    "", "/etc/shadow", "../../../../{target}/new", "{target}/precious", "*", "a\0b", "a\nb",
    "$(touch {target}/new)", "; touch {target}/new", "--output={target}/new", "A" * 5_000,
    "GPU-00000000-0000-0000-0000-000000000000", "nvidia.com/../../{target}", "0000:00:00.0",
    "7e4b7a12-5b0c-4a6e-9d2f-0c1d2e3f4a5b", "gpu-0",
)  # fmt: skip
NUMBERS = (-1, 0, 1, 1 << 31, 1 << 63, 10**30, 1.5)
OTHERS: tuple[object, ...] = (None, True, [], {}, [[]], {"path": "/etc"})


def requests(target: str) -> Iterator[bytes]:
    """Yield requests as they are sent; `target` is a folder of the host that is none of theirs."""
    for verb, kind in CALLS.items():
        for call in _calls(kind, target):
            arguments = {"library": f"{target}/precious", "limit_s": 3, "call": call}
            yield _encoded({"id": 1, "verb": verb, "arguments": arguments})
    yield from (_encoded(value) for value in (*OTHERS, *NUMBERS, *TEXTS))
    yield from (b"", b"\xff\xff\xff\xff", b"\0\0\0\1", b"\0\0\0\2\xff\xfe", b"\0\0\0\4[[[[")


def _encoded(value: object) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text


def _calls(kind: type, target: str) -> Iterator[object]:
    """Yield calls of a verb in which one field each is hostile, and what is no call."""
    usual = {name: _usual(hint) for name, hint in _hints(kind).items()}
    yield usual
    for name, hint in _hints(kind).items():
        for value in _hostile(hint, target):
            yield {**usual, name: value}
    yield {**usual, "path": f"{target}/new"}
    yield from OTHERS


def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _usual(kind: Any) -> Any:
    """Return a value of a type that is not hostile."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        return None if NoneType in arguments else _usual(arguments[0])
    if origin is tuple:
        return [] if arguments[1:] == (...,) else [_usual(each) for each in arguments]
    if origin is Mapping or origin is dict:
        return {}
    if is_dataclass(kind) and isinstance(kind, type):
        return {name: _usual(hint) for name, hint in _hints(kind).items()}
    return {str: "x", int: 0, bool: False}.get(kind, 0)


def _hostile(kind: Any, target: str) -> Iterator[Any]:
    """Yield values for a field: of its type, but never meant, and of none."""
    origin, arguments = get_origin(kind), get_args(kind)
    yield from OTHERS
    yield from NUMBERS
    for text in TEXTS:
        yield text.replace("{target}", target)
    if origin is tuple:
        inner = arguments[:1] if arguments[1:] == (...,) else ()
        for each in inner:
            yield from ([value] for value in _hostile(each, target))
    if is_dataclass(kind) and isinstance(kind, type):
        usual = _usual(kind)
        for name, hint in _hints(kind).items():
            yield from ({**usual, name: value} for value in _hostile(hint, target))
