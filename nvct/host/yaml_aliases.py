# SPDX-License-Identifier: Apache-2.0
"""A loader of YAML files that limits aliases, by which a few bytes can be billions of values."""

from __future__ import annotations

from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"
LIMIT = 100_000  # values that aliases add to those that are written out


class LimitedAliases:
    """Limits aliases; a class names it as a base before a loader of PyYAML."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the only document, None if there is none."""
        return _checked(super().get_single_node())  # type: ignore[misc]

    def get_node(self) -> yaml.Node | None:
        """Return the next document, None after the last one."""
        return _checked(super().get_node())  # type: ignore[misc]


class Loader(LimitedAliases, yaml.SafeLoader):
    """PyYAML's safe loader with the limit; it also refuses a key that a map has twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ANN401, FBT001, FBT002 - PyYAML's
        """Return a map; YAMLError if it has a key twice."""
        keys = [
            # A merge key has no value of its own; the keys that it brings in can be set again.
            key.value if key.tag == MERGE else self.construct_object(key, deep=True)
            for key, _ in node.value
        ]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"key {key!r} already set in map")
        return super().construct_mapping(node, deep)


def _checked(root: yaml.Node | None) -> yaml.Node | None:
    """Return a document; MarkedYAMLError if its aliases stand for too many values."""
    if root is None:
        return None
    sizes: dict[int, int] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        children = _children(node)
        if id(node) not in sizes:
            sizes[id(node)] = 0  # until it is known; PyYAML refuses a node that contains itself
            waiting += (child for child in children if id(child) not in sizes)
            continue
        waiting.pop()
        sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
    if sizes[id(root)] > len(sizes) + LIMIT:
        raise yaml.constructor.ConstructorError(
            None, None, f"aliases stand for more than {LIMIT} values", root.start_mark
        )
    return root


def _children(node: Any) -> list[yaml.Node]:  # noqa: ANN401 - PyYAML has no type of its values
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return []
