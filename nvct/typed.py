# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses from JSON data and back, strictly: the types of their fields are the schema.

An object has exactly the fields of its class. No value is converted: neither true nor 1.0 is an
integer; an integer is a number. Types: bool, int, float, str, None, object (any JSON data),
Literal, unions, tuples, NamedTuples (lists), dictionaries by texts, dataclasses. What types cannot
say, `__post_init__` of a dataclass checks, and raises ValueError.

Contract: data of a program with fewer rights is read with this. It raises MalformedError and
nothing else. The caller limits bytes and depth of the data first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    Reader: TypeAlias = Callable[[Any], Any]

T = TypeVar("T")

NAMES = {
    type(None): "null", bool: "a boolean", int: "an integer", float: "a number", str: "a string",
    list: "a list", dict: "an object",
}  # fmt: skip
SHOWN = 40  # Characters of a key that a message shows


class MalformedError(ValueError):
    """Data is not that of a type; the text says where, and why."""


class _WrongError(Exception):
    """What is wrong, while the path to it is put together from its end."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path = ""


def load(kind: type[T], value: object, name: str = "a value") -> T:
    """Return JSON data as an object of a type.

    MalformedError if the data is not that of the type; TypeError if the type is not one that this
    module knows.

    Args:
        kind: the type.
        value: of `json`.
        name: of the data, for messages.
    """
    try:
        loaded: T = _reader(kind)(value)  # type: ignore[arg-type]  # a type is hashable
    except _WrongError as error:
        raise MalformedError(f"{name}{error.path}: {error.reason}") from error.__cause__
    return loaded


def dump(value: object) -> Any:  # noqa: ANN401 - JSON data
    """Return an object as JSON data, from which `load` makes an equal one."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: dump(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: dump(member) for key, member in value.items()}
    if isinstance(value, (tuple, list)):
        return [dump(member) for member in value]
    return str(value) if isinstance(value, str) else value  # also of a subclass


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - types are not all of class type
    """Return the function that reads data of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return lambda value: value
    if kind in NAMES and kind not in (list, dict):
        return partial(_scalar, (int, float) if kind is float else (kind,), NAMES[kind])
    if origin is Literal:
        return partial(_literal, arguments)
    if origin in (Union, UnionType):
        return partial(_union, tuple(_reader(each) for each in arguments))
    if origin is tuple:
        if arguments[1:] == (...,):
            return partial(_sequence, _reader(arguments[0]))
        return partial(_row, tuple, tuple(_reader(each) for each in arguments))
    if origin in (dict, Mapping) and arguments[0] is str:
        return partial(_members, _reader(arguments[1]))
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return partial(
            _object, kind, {each.name: _reader(hints[each.name]) for each in fields(kind)}
        )
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        readers = tuple(_reader(hint) for hint in get_type_hints(kind).values())
        return partial(_row, lambda values: kind(*values), readers)
    raise TypeError(f"{kind} is no type of JSON data")


def _scalar(kinds: tuple[type, ...], name: str, value: Any) -> Any:  # noqa: ANN401
    if type(value) not in kinds:
        raise _not(name, value)
    if type(value) is float and not math.isfinite(value):
        raise _WrongError("it is not finite")
    return value


def _literal(values: tuple[Any, ...], value: Any) -> Any:  # noqa: ANN401
    for each in values:
        if type(each) is type(value) and each == value:
            return each
    raise _WrongError(f"it is none of {', '.join(map(repr, values))}")


def _union(readers: tuple[Reader, ...], value: Any) -> Any:  # noqa: ANN401
    errors = []
    for reader in readers:
        try:
            return reader(value)
        except _WrongError as error:
            errors.append(error)
    raise max(errors, key=lambda error: len(error.path))  # the one that fitted best


def _sequence(reader: Reader, value: Any) -> Any:  # noqa: ANN401
    if type(value) is not list:
        raise _not("a list", value)
    return tuple(_within(reader, member, f"[{index}]") for index, member in enumerate(value))


def _row(make: Reader, readers: tuple[Reader, ...], value: Any) -> Any:  # noqa: ANN401
    if type(value) is not list or len(value) != len(readers):
        raise _not(f"a list of {len(readers)}", value)
    pairs = enumerate(zip(readers, value, strict=True))
    return make([_within(reader, member, f"[{index}]") for index, (reader, member) in pairs])


def _members(reader: Reader, value: Any) -> Any:  # noqa: ANN401
    if type(value) is not dict:
        raise _not("an object", value)
    return {key: _within(reader, value[key], f"[{_shown(key)}]") for key in value}


def _object(kind: type, readers: dict[str, Reader], value: Any) -> Any:  # noqa: ANN401
    if type(value) is not dict:
        raise _not("an object", value)
    if value.keys() != readers.keys():
        lacks = [name for name in readers if name not in value]
        excess = [_shown(name) for name in value if name not in readers]
        words = f"it lacks {lacks[0]}" if lacks else f"it has the unknown field {excess[0]}"
        raise _WrongError(words)
    arguments = {name: _within(readers[name], value[name], f".{name}") for name in readers}
    try:
        return kind(**arguments)
    except ValueError as error:
        raise _WrongError(str(error)) from error


def _within(reader: Reader, value: Any, step: str) -> Any:  # noqa: ANN401
    try:
        return reader(value)
    except _WrongError as error:
        error.path = f"{step}{error.path}"
        raise


def _not(expected: str, value: object) -> _WrongError:
    return _WrongError(f"it is {NAMES.get(type(value), 'something else')}, not {expected}")


def _shown(key: object) -> str:
    return ascii(key)[:SHOWN]
