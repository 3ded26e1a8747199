# SPDX-License-Identifier: Apache-2.0
"""Reads manifests as kubectl does, and writes them so that kubectl reads the same.

kubectl reads YAML 1.1 by go-yaml: an unquoted `0777` is 511, and `1e3` a number. So a string that
looks like such a value gets quotes, also where PyYAML would omit them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from nvct.agent.core import yaml_file

SIZE_LIMIT = 8 << 20  # Enough for a Helm chart with its CustomResourceDefinitions
DEPTH_LIMIT = 100
WIDTH = 1 << 20  # Of a line, so that scripts and commands are not folded


def load_all(path: str) -> list[object]:
    """Return a file's non-empty documents; DocumentError as `yaml_file.load`."""
    return yaml_file.load_all(path, "the manifest", _Loader, SIZE_LIMIT)


def dump_all(documents: Iterable[object]) -> str:
    """Return documents as YAML."""
    return str(
        yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    )


class _Loader(yaml_file.Loader):
    depth_limit = DEPTH_LIMIT

    def construct_yaml_int(self, node: Any) -> int:  # noqa: ANN401 - PyYAML's
        """Read a number, which may be octal, as file modes are."""
        return int(yaml.SafeLoader.construct_yaml_int(self, node))


_Loader.add_constructor(yaml_file.INT, _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:  # noqa: ANN401 - PyYAML's
        """Return the tag that an unquoted scalar has for PyYAML or for go-yaml."""
        if kind is yaml.ScalarNode and implicit[0]:
            tag = yaml_file.tag_of(value)
            if tag != yaml_file.STR:
                return tag
            if value in GO_BOOLS:
                return yaml_file.BOOL
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ANN401, ARG002 - PyYAML's
        """Return True: a value that two places share is written twice."""
        return True


GO_BOOLS = ("y", "Y", "n", "N")


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar(yaml_file.STR, text, style)


_Dumper.add_representer(str, _text)
