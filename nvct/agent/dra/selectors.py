# SPDX-License-Identifier: Apache-2.0
"""Evaluates simple CEL selectors of DRA on a device of a ResourceSlice, for nvct explain.

This is not a CEL interpreter: that is in the scheduler. It understands terms that && joins: a
driver, an attribute or a capacity compared with a literal, by an operator or by compareTo with
quantity() or semver(); membership in a list; an attribute that is a bool; true and false. Of
methods, it knows those that `nvct convert --claims` writes. With another term, the result is
unknown, unless one of the terms is false.
Contract: pure functions.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from nvct.agent.kubernetes import quantity

Object: TypeAlias = dict[str, Any]
Value: TypeAlias = str | int | float | bool | tuple[int, ...]

LIMIT = 10 * 1024
"""The most characters of a selector (resource.k8s.io)."""
REPLACED = {"index": "uuid", "minor": "uuid"}
"""Attributes of older drivers that change from boot to boot, and the attribute to use instead."""
NESTING = 16
"""The most pairs of parentheses around a term that are removed."""
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
    ">": operator.gt, "<": operator.lt,
}  # fmt: skip
STRING = r"""(?:'[^'\\]{0,300}'|"[^"\\]{0,300}")"""
PLACE = (
    rf"device\.(?P<part>attributes|capacity)\[(?P<domain>{STRING})\]"
    rf"(?:\.(?P<name>\w{{1,64}})|\[(?P<quoted>{STRING})\])"
)
LITERAL = rf"(?:{STRING}|-?\d{{1,18}}|true|false)"
OPERATOR = "(?P<operator>==|!=|>=|<=|>|<)"
DRIVER_TERM = re.compile(rf"device\.driver ?{OPERATOR} ?(?P<literal>{STRING})")
CALL = rf"\.(lowerAscii|major|replace)\(({STRING})?(?: ?, ?({STRING}))?\)"
CALLS = rf"(?P<calls>(?:\.(?:lowerAscii\(\)|major\(\)|replace\({STRING} ?, ?{STRING}\))){{0,4}})"
LITERAL_TERM = re.compile(rf"{PLACE}{CALLS} ?{OPERATOR} ?(?P<literal>{LITERAL})")
COMPARED_TERM = re.compile(
    rf"{PLACE}\.compareTo\((?:quantity|semver)\((?P<literal>{STRING})\)\) ?{OPERATOR} ?0"
)
LIST_TERM = re.compile(rf"{PLACE}{CALLS} in \[(?P<list>{LITERAL}(?: ?, ?{LITERAL}){{0,64}})\]")
BOOL_TERM = re.compile(rf"(?P<not>!? ?){PLACE}")
SEMVER = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})")


def terms(expression: str) -> list[str]:
    """Return the terms of an expression that && joins, without needless parentheses."""
    text = _without_parentheses(" ".join(expression[:LIMIT].split()))
    parts = list(_split(text))
    return parts if len(parts) == 1 else [one for part in parts for one in terms(part)]


def lacking(term: str, driver: str, devices: Sequence[Object]) -> tuple[str, str]:
    """Return an attribute that a term names but no device has, and a hint.

    ("", "") if there is no such attribute, or no device.
    """
    for match in re.finditer(PLACE, term):
        if match["part"] != "attributes":
            continue
        domain, name = _text(match["domain"]), match["name"] or _text(match["quoted"])
        if name := unknown(f"{domain}/{name}", driver, devices):
            if name in REPLACED:
                return name, f"use {REPLACED[name]}"
            known = sorted({each for device in devices for each in _attributes(device)})
            similar = difflib.get_close_matches(name, known) or known
            return name, f"they have {', '.join(similar)}"
    return "", ""


def unknown(attribute: str, driver: str, devices: Sequence[Object]) -> str:
    """Return the NAME of an attribute DOMAIN/NAME that no device has; "" without any devices."""
    domain, _, name = attribute.rpartition("/")
    names = {attribute, name} if domain in ("", driver) else {attribute}
    return "" if not devices or any(names & _attributes(one).keys() for one in devices) else name


def _attributes(device: Object) -> Object:
    found: Object = body(device).get("attributes") or {}
    return found


def holds(expression: str, driver: str, device: Object) -> bool | None:
    """Return whether a device fits an expression; None if that is unknown."""
    results = [_holds(term, driver, device) for term in terms(expression)]
    if False in results:
        return False
    return None if None in results else True


def body(device: Object) -> Object:
    """Return the content of a slice's device; v1beta1 has it in the field `basic`."""
    content: Object = device.get("basic") or device
    return content


def has_room(device: Object, parts: Sequence[str], asked: str) -> bool:
    """Return whether a device that claims can share has memory left for one more claim.

    Args:
        parts: the memory of each claim that has the device.
        asked: the memory of the new claim; "" is the device's default, all of nvct's devices.
    """
    content = body(device)
    memory = content.get("capacity", {}).get("memory") or {}
    policy = memory.get("requestPolicy") or {}
    whole = quantity.parse(str(memory.get("value"))) or 0
    wanted = quantity.parse(str(asked or policy.get("default"))) or whole
    sizes = [quantity.parse(str(size)) or 0 for size in policy.get("validValues") or ()]
    if sizes:  # the scheduler takes the next larger one
        wanted = min((size for size in sizes if size >= wanted), default=whole + 1)
    used = sum(quantity.parse(part) or 0 for part in parts)
    return bool(content.get("allowMultipleAllocations")) and used + wanted <= whole


def _holds(term: str, driver: str, device: Object) -> bool | None:
    if term in ("true", "false"):
        return term == "true"
    if match := DRIVER_TERM.fullmatch(term):
        return OPERATORS[match["operator"]](driver, _text(match["literal"]))
    if match := LITERAL_TERM.fullmatch(term):
        value = _called(_value(match, driver, device), match["calls"])
        return _compare(value, match["operator"], _of(match["literal"]))
    if match := COMPARED_TERM.fullmatch(term):
        literal = _text(match["literal"])
        other = quantity.parse(literal) if match["part"] == "capacity" else _semver(literal)
        return _compare(_value(match, driver, device), match["operator"], other)
    if match := LIST_TERM.fullmatch(term):
        value = _called(_value(match, driver, device), match["calls"])
        equal = [_compare(value, "==", _of(one)) for one in re.findall(LITERAL, match["list"])]
        return None if None in equal else True in equal
    if match := BOOL_TERM.fullmatch(term):
        value = _value(match, driver, device)
        return value is not bool(match["not"].strip()) if isinstance(value, bool) else None
    return None


def _compare(value: Value | None, sign: str, other: Value | None) -> bool | None:
    if value is None or other is None:
        return None
    numbers = isinstance(value, int | float) and isinstance(other, int | float)
    if type(value) is not type(other) and not numbers:
        return None
    return OPERATORS[sign](value, other)


def _value(match: re.Match[str], driver: str, device: Object) -> Value | None:
    """Return an attribute or a capacity of a device; None if it is missing: an error in CEL."""
    domain, name = _text(match["domain"]), match["name"] or _text(match["quoted"] or "")
    entries = body(device).get(match["part"]) or {}
    entry = entries.get(f"{domain}/{name}") or (entries.get(name) if domain == driver else None)
    if not isinstance(entry, dict):
        return None
    if match["part"] == "capacity":
        return quantity.parse(str(entry.get("value", "")))
    if "version" in entry:
        return _semver(str(entry["version"]))
    value = next((entry[key] for key in ("bool", "int", "string") if key in entry), None)
    return value if isinstance(value, str | int) else None


def _called(value: Value | None, calls: str) -> Value | None:
    """Return the result of methods on a value; None if a value of its type lacks one."""
    for name, first, second in re.findall(CALL, calls):
        if name == "major" and isinstance(value, tuple):
            value = value[0]
        elif name == "lowerAscii" and isinstance(value, str):
            value = "".join(one.lower() if one.isascii() else one for one in value)
        elif name == "replace" and isinstance(value, str):
            value = value.replace(_text(first), _text(second))
        else:
            return None
    return value


def _semver(text: str) -> tuple[int, ...] | None:
    match = SEMVER.fullmatch(text)
    return tuple(map(int, match.groups())) if match else None


def _of(literal: str) -> Value:
    if literal in ("true", "false"):
        return literal == "true"
    return _text(literal) if literal[0] in "'\"" else int(literal)


def _text(literal: str) -> str:
    return literal[1:-1]


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a text between && that is outside parentheses, brackets and strings."""
    depth, begun, quote = 0, 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif text.startswith("&&", at) and depth == 0:
            yield text[begun:at].strip()
            begun = at + 2
    yield text[begun:].strip()


def _without_parentheses(text: str) -> str:
    for _ in range(NESTING):
        if not (text.startswith("(") and text.endswith(")")):
            return text
        depth = 0
        for at, letter in enumerate(text):
            depth += (letter == "(") - (letter == ")")
            if depth == 0 and at < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text
