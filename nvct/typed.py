# SPDX-License-Identifier: Apache-2.0
"""Reads frozen dataclasses from JSON data, strictly, and writes them: field types are the schema.

An object has exactly the fields of its class. No value is converted: neither true nor 1.0 is an
integer; an integer is a number. Types: bool, int, float, str, None, object (any JSON data),
Literal, unions, tuples, NamedTuples (lists), dictionaries with string keys, dataclasses. For rules
that types cannot express, a dataclass has a `__post_init__` that raises ValueError.

Contract: the data can come from a program with fewer rights: it causes MalformedError and no other
error. The caller first limits the data's bytes and depth.
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
    """Data does not fit its type; the message says where, and why."""


class _WrongError(Exception):
    """A reason; while it is raised through the readers, `path` grows at its front."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path = ""


def load(kind: type[T], value: object, name: str = "a value") -> T:
    """Return JSON data (`value`, from `json`) as an object of type `kind`.

    MalformedError if the data does not fit the type: the message calls the data `name`. TypeError
    if this module cannot read the type.
    """
    try:
        loaded: T = _reader(kind)(value)  # type: ignore[arg-type]  # a type is hashable
    except _WrongError as error:
        raise MalformedError(f"{name}{error.path}: {error.reason}") from error.__cause__
    return loaded


def dump(value: object) -> Any:  # noqa: ANN401 - JSON data
    """Return an object as JSON data, from which `load` makes an equal object."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: dump(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: dump(member) for key, member in value.items()}
    if isinstance(value, (tuple, list)):
        return [dump(member) for member in value]
    return str(value) if isinstance(value, str) else value  # a subclass of str, too


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - a union is not an instance of `type`
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
    raise TypeError(f"{kind} is not a type of JSON data")


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
    raise _WrongError(f"it is not one of {', '.join(map(repr, values))}")


def _union(readers: tuple[Reader, ...], value: Any) -> Any:  # noqa: ANN401
    errors = []
    for reader in readers:
        try:
            return reader(value)
        except _WrongError as error:
            errors.append(error)
    raise max(errors, key=lambda error: len(error.path))  # of the type that fits best


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
