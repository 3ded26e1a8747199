# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML or JSON file, and refuses values that YAML 1.1 and 1.2 read differently, as `010`.

NVIDIA's programs read YAML 1.1 by go-yaml, which takes `1:0` as a string; PyYAML takes it as 60.
A date stays a string.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from nvct.errors import DocumentError, OSErrorsAs
from nvct.host.yaml_aliases import LimitedAliases

T = TypeVar("T")

SIZE_LIMIT = 1 << 20
DEPTH_LIMIT = 32
DIGITS = 18  # The most of a number: all such numbers fit into 64 bits
BOOL, NULL, INT, FLOAT, STR, MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "null", "int", "float", "str", "merge")
)
TAGS = {BOOL, NULL, INT, FLOAT, STR, MERGE, "tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
RESOLVERS = (
    (BOOL, re.compile(r"(?i:yes|no|true|false|on|off)")),
    (NULL, re.compile(r"~|(?i:null)|")),
    (INT, re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|[0-9][0-9_]*|0x[0-9a-fA-F_]+)")),
    (FLOAT, re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")),
    (FLOAT, re.compile(r"[-+]?\.(?i:inf)|\.(?i:nan)")),
    (MERGE, re.compile(r"<<")),
)
"""Tags of unquoted scalars: the first one whose pattern matches, else a string."""


def load(path: str, what: str) -> object:
    """Return a file's document, None if it is empty.

    DocumentError if the file is unreadable, too large or malformed.
    """
    return _parsed(path, what, lambda text: yaml.load(text, Loader=Loader))  # noqa: S506 - a SafeLoader


def load_all(
    path: str, what: str, loader: type[Loader], size_limit: int = SIZE_LIMIT
) -> list[object]:
    """Return the documents of a file, without empty ones; DocumentError as `load`."""
    found = _parsed(path, what, lambda text: list(yaml.load_all(text, loader)), size_limit)
    return [document for document in found if document is not None]


def tag_of(value: str) -> str:
    """Return the tag of an unquoted scalar."""
    return next((tag for tag, form in RESOLVERS if form.fullmatch(value)), STR)


def read(path: str, what: str, size_limit: int = SIZE_LIMIT) -> bytes:
    """Return the bytes of a file; DocumentError if it cannot be read, or is too large."""
    with OSErrorsAs(DocumentError, f"{what} {path}"), open(path, "rb") as file:
        data = file.read(size_limit + 1)
    if len(data) > size_limit:
        raise DocumentError(f"{what} {path} has more than {size_limit >> 20} MiB")
    return data


def _parsed(path: str, what: str, parse: Callable[[str], T], size_limit: int = SIZE_LIMIT) -> T:
    data = read(path, what, size_limit)
    try:
        return parse(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DocumentError(f"{what} {path} is malformed: it is not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" in line {mark.line + 1}" if mark else ""
        problem = " ".join((error.problem or error.context or "").split())
        raise DocumentError(f"{what} {path} is malformed{line}: {problem}") from error
    except yaml.YAMLError as error:
        problem = " ".join(str(error).partition(" in ")[0].split())
        raise DocumentError(f"{what} {path} is malformed: {problem}") from error


class Loader(LimitedAliases, yaml.SafeLoader):
    """Loads tables with unique string keys, lists, strings, decimal numbers and switches."""

    depth = 0
    depth_limit = DEPTH_LIMIT

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:  # noqa: ANN401 - PyYAML's
        """Return the tag of a node without one."""
        if kind is yaml.ScalarNode and implicit[0]:
            return tag_of(value)
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:  # noqa: ANN401 - PyYAML's
        """Limit the depth, and refuse tags of other types."""
        self.depth += 1
        if self.depth > self.depth_limit:
            raise _error("nested too deeply", self.peek_event())  # type: ignore[no-untyped-call]
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        if node is not None and node.tag not in TAGS:
            raise _error(f"the type {node.tag} is not allowed", node)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ANN401, FBT001, FBT002 - PyYAML's
        """Refuse duplicate keys, and read each key as a string."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key is not a string", key)
            if key.tag == MERGE:
                continue
            key.tag = STR
            if key.value in seen:
                raise _error(f"duplicate key {key.value}", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:  # noqa: ANN401 - PyYAML's
        """Read a decimal number."""
        text = str(node.value)
        if not DECIMAL.fullmatch(text):
            raise _error(f"{text[:40]} is not a decimal number; a string needs quotes", node)
        if len(text) > DIGITS:
            raise _error(f"the number {text[:DIGITS]}... is too large", node)
        return int(text)

    def construct_yaml_bool(self, node: Any) -> bool:  # noqa: ANN401 - PyYAML's
        """Read true or false, also as yes, no, on and off."""
        value = self.bool_values.get(str(node.value).lower())
        if value is None:
            raise _error(f"{node.value[:40]} is neither true nor false", node)
        return value

    def construct_yaml_float(self, node: Any) -> float:  # noqa: ANN401 - PyYAML's
        """Read a number with a fraction."""
        try:
            return float(super().construct_yaml_float(node))
        except ValueError as error:
            raise _error(f"{node.value[:40]} is not a number", node) from error


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:  # noqa: ANN401 - a node or event
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


for _tag, _method in (
    (INT, Loader.construct_yaml_int),
    (BOOL, Loader.construct_yaml_bool),
    (FLOAT, Loader.construct_yaml_float),
):
    Loader.add_constructor(_tag, _method)
