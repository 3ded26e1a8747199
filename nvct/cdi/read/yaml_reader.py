# SPDX-License-Identifier: Apache-2.0
"""Reads a CDI spec in YAML as engines do, with limits.

Cold side. Engines read JSON and YAML with one YAML 1.1 reader (go-yaml) that knows which members
are strings: an unquoted `name: 0` is the device "0", and `fileMode: 0660` is octal. This reader
does the same, except if go-yaml would silently change a string (`name: on` to a device "true",
`name: 007` to a device "7"): then it raises an error that asks for quotes.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from nvct.cdi.read import spec_fields
from nvct.errors import CdiSpecError

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # PyYAML without libyaml: slower, same result
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

DEPTH_LIMIT = 32
VALUE_LIMIT = 400_000  # YAML aliases can expand a few bytes to many values

_NULL = re.compile(r"~|null|Null|NULL|")
_FLAG = re.compile(r"true|True|TRUE|false|False|FALSE")
_FLAG_WORD = re.compile(r"y|Y|n|N|(?i:yes|no|on|off|true|false)")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0o?[0-7]+|0x[0-9a-fA-F]+|0b[01]+)")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]|[0-9])[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_PLAIN_FRACTION = re.compile(r"-?(0|[1-9][0-9]{0,9})\.[0-9]{0,4}[1-9]")


def parse(text: str, source: str) -> object:
    """Return a YAML text's document, unchecked; CdiSpecError if it is not YAML, or too large."""
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "malformed"
        raise CdiSpecError(f"{source} is not YAML{line}: {problem}") from error
    except yaml.YAMLError as error:
        raise CdiSpecError(f"{source} is not YAML: {str(error).splitlines()[0]}") from error
    return _Types(source).convert(document, f"{source}:", "", 0)


class _Plain(str):
    """An unquoted YAML scalar; its type depends on its member."""

    __slots__ = ()


class _Loader(_Base):
    """Reads only strings, `_Plain` scalars, lists, and tables with unique keys."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  as in PyYAML
    yaml_constructors: ClassVar = {}
    depth = 0
    merged = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:  # noqa: ANN401  PyYAML's own
        """Limit the depth (MarkedYAMLError): libyaml recurses in C, deep nesting crashes it."""
        super().descend_resolver(current_node, current_index)
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise yaml.MarkedYAMLError(problem="nested too deeply")

    def ascend_resolver(self) -> None:
        """Leave a level of nesting."""
        super().ascend_resolver()
        self.depth -= 1


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    # For plain scalars libyaml's binding has style "", the Python parser None.
    return text if node.style else _Plain(text)


def _string(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return list(loader.construct_sequence(node, deep=True))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    table: dict[str, Any] = {}
    merged: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise _error("a key that is not a scalar", key_node)
        key = key_node.value
        value = loader.construct_object(value_node, deep=True)
        if key == "<<" and not key_node.style:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    raise _error("<< merges a table", key_node)
                loader.merged += len(source) + len(merged)
                if loader.merged > VALUE_LIMIT:
                    raise _error("<< merges too much", key_node)
                merged = {**source, **merged}  # the first of several tables wins
            continue
        if key in table:
            raise _error(f"duplicate key {spec_fields.shown(str(key))}", key_node)
        table[key] = value
    return {**merged, **table}


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _unknown(loader: _Loader, node: yaml.Node) -> object:
    del loader
    raise _error(f"a CDI spec has no tag {spec_fields.shown(node.tag)}", node)


_Loader.add_constructor("tag:yaml.org,2002:str", _scalar)
_Loader.add_constructor("!", _string)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor(None, _unknown)


class _Types:
    """Converts unquoted scalars to the types of their members in a CDI spec."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.values = 0

    def convert(self, value: object, at: str, key: str, depth: int) -> object:
        """Return a converted value; `key` is the name of its member."""
        self.values += 1
        if self.values > VALUE_LIMIT or depth > DEPTH_LIMIT:
            raise CdiSpecError(f"{self.source} is nested too deeply or too large")
        if isinstance(value, dict):
            inside = "annotations" if key == "annotations" else ""
            return {
                name: self.convert(
                    element, spec_fields.member(at, name), inside or name, depth + 1
                )
                for name, element in value.items()
            }
        if isinstance(value, list):
            return [
                self.convert(element, f"{at}[{index}]", key, depth + 1)
                for index, element in enumerate(value)
            ]
        return _typed(value, at, key) if isinstance(value, _Plain) else value


def _typed(text: _Plain, at: str, key: str) -> object:
    if _NULL.fullmatch(text):
        return None
    if key.lower() in spec_fields.NUMBERS:
        return _integer(text) if _INTEGER.fullmatch(text) else str(text)
    if key.lower() in spec_fields.FLAGS:
        return text.lower() == "true" if _FLAG.fullmatch(text) else str(text)
    if key == "annotations":
        # Kubernetes' rule: annotations are strings; a boolean or number is an error.
        if _FLAG_WORD.fullmatch(text):
            return text.lower() in {"y", "yes", "on", "true"}
        return _integer(text) if _INTEGER.fullmatch(text) else str(text)
    return _unambiguous(text, at)


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return sign * int(digits, 8)  # YAML 1.1, and go-yaml
    return sign * int(digits, 0) if len(digits) < 100 else sign * 10**99


def _unambiguous(text: str, at: str) -> str:
    """Return an unquoted scalar as a string, if all parsers read it as that string."""
    looks_otherwise = (
        _FLAG_WORD.fullmatch(text)
        or (_INTEGER.fullmatch(text) and not _DECIMAL.fullmatch(text))
        or (
            _NUMBER.fullmatch(text)
            and not _DECIMAL.fullmatch(text)
            and not _PLAIN_FRACTION.fullmatch(text)
        )
    )
    if looks_otherwise:
        raise CdiSpecError(
            f"{at} is {text}, which YAML does not read as a string",
            hint=f'put it in quotes: "{text[:40]}"',
        )
    return str(text)
