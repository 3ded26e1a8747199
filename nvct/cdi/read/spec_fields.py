# SPDX-License-Identifier: Apache-2.0
"""Readers of the members of a CDI spec, as `nvct.cdi.types` describes them.

Cold side. As in engines, an unknown member is an error, null is the same as absent, and member
names are case-insensitive (the specification itself writes additionalGIDs once). The readers
return members in the order of the description, and `store` writes them in that order.
"""

from __future__ import annotations

from nvct.cdi import types
from nvct.errors import CdiSpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeAlias

    Reader: TypeAlias = Callable[[object, str], Any]
    """Takes a value and its position in the document; returns the value without nulls."""

SHOWN = 60
UINT32 = 2**32 - 1
INT64 = 2**63 - 1
MAJOR_LIMIT = 2**12 - 1  # the kernel's dev_t: 12 bits of major number, 20 of minor
MINOR_LIMIT = 2**20 - 1


def shown(value: object) -> str:
    """Return a value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def member(at: str, key: str) -> str:
    """Return the position of a member; the position of a whole document ends with a colon."""
    return f"{at} {key}" if at.endswith(":") else f"{at}.{key}"


def owner(at: str) -> str:
    """Return a position as the subject of a sentence."""
    return at.removesuffix(":")


def text(value: object, at: str) -> str:
    """Read a string; CdiSpecError if it is not one, or has a NUL or a lone surrogate."""
    if not isinstance(value, str):
        raise CdiSpecError(f"{at} is {shown(value)}, not a string", hint="put it in quotes")
    if "\0" in value:
        raise CdiSpecError(f"{at} has a NUL character: {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CdiSpecError(f"{at} is not Unicode text: {shown(value)}") from error
    return value


def flag(value: object, at: str) -> bool:
    """Read true or false; CdiSpecError for anything else."""
    if not isinstance(value, bool):
        raise CdiSpecError(f"{at} is {shown(value)}, not true or false")
    return value


def number(most: int) -> Reader:
    """Return a reader of integers from 0 to `most`."""

    def read(value: object, at: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise CdiSpecError(f"{at} is {shown(value)}, not a number")
        if not 0 <= value <= most:
            raise CdiSpecError(f"{at} is {shown(value)}, not in 0 to {most}")
        return value

    return read


def array(reader: Reader) -> Reader:
    """Return a reader of arrays."""

    def read(value: object, at: str) -> list[Any]:
        if not isinstance(value, list):
            raise CdiSpecError(f"{at} is {shown(value)}, not a list")
        return [reader(element, f"{at}[{index}]") for index, element in enumerate(value)]

    return read


def texts(value: object, at: str) -> dict[str, str]:
    """Read a table of strings, sorted by key; CdiSpecError for anything else."""
    if not isinstance(value, dict):
        raise CdiSpecError(f"{owner(at)} is {shown(value)}, not a table")
    return {
        text(key, at): text(member_value, member(at, str(key)))
        for key, member_value in sorted(value.items(), key=lambda item: str(item[0]))
    }


def table(fields: Mapping[str, Reader], required: list[str]) -> Reader:
    """Return a reader of objects that have only these members; required ones are not empty."""
    names = {name.lower(): name for name in fields}

    def read(value: object, at: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise CdiSpecError(f"{owner(at)} is {shown(value)}, not a table")
        members: dict[str, Any] = {}
        for key, member_value in value.items():
            name = names.get(key.lower()) if isinstance(key, str) else None
            if name is None:
                raise CdiSpecError(
                    f"{owner(at)} has the unknown field {shown(key)}",
                    hint="CDI 1.1 knows " + ", ".join(fields) if len(fields) < 8 else "",
                )
            if name in members:
                raise CdiSpecError(f"{owner(at)} has {name} twice, in different spellings")
            if member_value is not None:
                members[name] = fields[name](member_value, member(at, name))
        for name in required:
            if not members.get(name):
                raise CdiSpecError(f"{owner(at)} has no {name}", hint=f"{name} is required")
        return {name: members[name] for name in fields if name in members}

    return read


LIMITS = {"Uint32": UINT32, "Int64": INT64, "Major": MAJOR_LIMIT, "Minor": MINOR_LIMIT}
# Names of members with numbers or booleans, in lower case; all others are strings.
NUMBERS: set[str] = set()
FLAGS: set[str] = set()


def _reader(name: str, kind: str) -> Reader:
    """Return the reader of a member, from its annotation in `nvct.cdi.types`."""
    kind = kind.removesuffix("]") if kind.startswith("Required[") else kind
    kind = kind.removeprefix("Required[")
    if kind.startswith("list["):
        return array(_reader(name, kind[len("list[") : -1]))
    if kind in LIMITS:
        NUMBERS.add(name.lower())
        return number(LIMITS[kind])
    if kind == "Flag":
        FLAGS.add(name.lower())
        return flag
    if kind == "Annotations":
        return texts
    described = getattr(types, kind, None)  # Text, a string, has no class at run time
    return _object(described) if described else text


def _object(described: type) -> Reader:
    members = described.__annotations__
    # `validate` reports a spec without devices and a device without edits.
    required = [name for name, kind in members.items() if kind == "Required[Text]"]
    return table({name: _reader(name, kind) for name, kind in members.items()}, required)


read_spec: Reader = _object(types.Spec)
