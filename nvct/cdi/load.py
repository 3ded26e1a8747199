# SPDX-License-Identifier: Apache-2.0
"""Reads CDI spec files: JSON or YAML, of limited size, without duplicate keys, valid.

Cold. Engines read both with a YAML 1.1 parser (go-yaml) that has the type of each member, so an
unquoted `name: 0` is the device "0", and `fileMode: 0660` is octal. This module does the same,
with one exception: an unquoted string that go-yaml would change silently (`name: on` to "true",
`name: 007` to "7") is an error that asks for quotes.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from nvct.cdi import spec_fields
from nvct.cdi.validate import validate
from nvct.errors import CdiSpecError, DocumentError
from nvct.linux.files import read_bytes

try:
    from yaml import CSafeLoader as _Base
except ImportError:  # PyYAML without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _Base  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.cdi.types import Spec

EXTENSIONS = (".json", ".yaml", ".yml")
SIZE_LIMIT = 16 << 20
DEPTH_LIMIT = 32
WHOLE_MAP = ["0", "0", "4294967295"]
VALUE_LIMIT = 400_000  # YAML aliases can expand a few bytes to many values

_PLAIN = "!plain"
_NULL = re.compile(r"~|null|Null|NULL|")
_FLAG = re.compile(r"true|True|TRUE|false|False|FALSE")
_FLAG_WORD = re.compile(r"y|Y|n|N|(?i:yes|no|on|off|true|false)")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*|0o?[0-7]+|0x[0-9a-fA-F]+|0b[01]+)")
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]|[0-9])[0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_PLAIN_FRACTION = re.compile(r"-?(0|[1-9][0-9]{0,9})\.[0-9]{0,4}[1-9]")


def load_file(path: str, *, owned: bool = False) -> Spec:
    """Return the spec in a file.

    Args:
        path: of the file.
        owned: refuse a file that belongs neither to root nor to this user, or that everybody may
            write: another user could choose its mounts and hooks.

    Raises:
        CdiSpecError: the file is unreadable or not a valid spec; names the file and the position.
    """
    try:
        data = read_bytes(path, SIZE_LIMIT, check=_check_owner if owned else None)
    except OSError as error:
        raise CdiSpecError(f"{path} cannot be read: {error.strerror}") from error
    except CdiSpecError:
        raise
    except DocumentError as error:
        raise CdiSpecError(error.message, hint="a CDI spec is a small regular file") from error
    return loads(data, source=path)


def _check_owner(path: str, status: os.stat_result) -> None:
    mode = status.st_mode & 0o777
    if status.st_uid in {0, os.geteuid(), *_unmapped_root()} and not mode & 0o002:
        return
    raise CdiSpecError(
        f"{path} belongs to uid {status.st_uid} with mode {mode:o}, so it is not used",
        hint="make it root's alone to write: chown root, chmod 644",
    )


def _unmapped_root() -> set[int]:
    """Return the uid that stands for the host's root in a user namespace (rootless engines)."""
    try:
        if Path("/proc/self/uid_map").read_text(encoding="ascii").split() == WHOLE_MAP:
            return set()
        return {int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))}
    except (OSError, ValueError):
        return set()


def loads(data: bytes, *, source: str) -> Spec:
    """Return the spec in a file's content.

    Raises:
        CdiSpecError: it is not a valid spec; names the file and the position.
    """
    return validate(parse(data, source=source), source=source)


def parse(data: bytes, *, source: str) -> object:
    """Return the document in a file's content, which need not be a valid spec.

    Content that begins with a brace and is JSON is read as JSON, all else as YAML, whatever the
    file's name, as engines do.

    Raises:
        CdiSpecError: it is neither, has a duplicate key, or is too deep or too large.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CdiSpecError(f"{source} is not UTF-8 at byte {error.start}") from error
    try:
        if text.lstrip().startswith("{"):
            return _parse_json(text, source)
        return _parse_yaml(text, source)
    except RecursionError as error:
        raise CdiSpecError(f"{source} is nested too deeply") from error


def _parse_json(text: str, source: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            count: dict[str, int] = {}
            for key, _ in pairs:
                count[key] = count.get(key, 0) + 1
            duplicate = next(key for key in count if count[key] > 1)
            raise CdiSpecError(
                f"{source} has the duplicate key {spec_fields.shown(duplicate)} in one object"
            )
        return table

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=_refuse_constant)
    except ValueError as error:
        # YAML may begin with a brace too; the error is JSON's, as most such files are JSON.
        try:
            return _parse_yaml(text, source)
        except CdiSpecError:
            raise CdiSpecError(f"{source} is no JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _parse_yaml(text: str, source: str) -> object:
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        problem = error.problem or error.context or "malformed"
        raise CdiSpecError(f"{source} is no YAML{line}: {problem}") from error
    except yaml.YAMLError as error:
        raise CdiSpecError(f"{source} is no YAML: {str(error).splitlines()[0]}") from error
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
        """Limit the depth: libyaml's binding recurses in C, and deep enough nesting crashes it.

        Raises:
            yaml.MarkedYAMLError: the nesting is too deep.
        """
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
            raise yaml.constructor.ConstructorError(
                None, None, "a key that is not a scalar", key_node.start_mark
            )
        key = key_node.value
        value = loader.construct_object(value_node, deep=True)
        if key == "<<" and not key_node.style:
            for source in value if isinstance(value, list) else [value]:
                if not isinstance(source, dict):
                    raise yaml.constructor.ConstructorError(
                        None, None, "<< merges a table", key_node.start_mark
                    )
                loader.merged += len(source) + len(merged)
                if loader.merged > VALUE_LIMIT:
                    raise yaml.constructor.ConstructorError(
                        None, None, "<< merges too much", key_node.start_mark
                    )
                merged = {**source, **merged}  # the first of several tables wins
            continue
        if key in table:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"duplicate key {spec_fields.shown(str(key))}",
                key_node.start_mark,
            )
        table[key] = value
    return {**merged, **table}


def _unknown(loader: _Loader, node: yaml.Node) -> object:
    del loader
    raise yaml.constructor.ConstructorError(
        None, None, f"a CDI spec has no tag {spec_fields.shown(node.tag)}", node.start_mark
    )


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
        """Return a converted value; `key` is its member."""
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
        # Kubernetes' rule for annotations: they are strings, a boolean or number is an error.
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
    """Return an unquoted scalar as a string, if every parser reads it as that string.

    Raises:
        CdiSpecError: parsers differ.
    """
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
