# SPDX-License-Identifier: Apache-2.0
"""The user's own labels, from a file: constants, and values of other labels under another key.

::

    example.com/pool: training
    example.com/gpu: "@nvidia.com/gpu.product"

A value that begins with @ names another label, as dynamic values of Node Feature Discovery do; if
the node lacks that one, it lacks this one too.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvct.agent.labels.facts import Labels, is_key, is_value
from nvct.errors import DocumentError

REFERENCE = "@"
RESERVED = ("kubernetes.io", "k8s.io")
"""Labels of these domains and below are Kubernetes's, but for those of ALLOWED."""
ALLOWED = ("feature.node.kubernetes.io", "profile.node.kubernetes.io")


def load(path: str) -> Labels:
    """Read a file of labels.

    Raises:
        DocumentError: it cannot be read, or has a key or value that Kubernetes does not accept.
    """
    from nvct.agent.core import yaml_file  # 2 MB

    document = yaml_file.load(path, "labels file")
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise DocumentError(f"labels file {path} is no table", hint="each line: KEY: VALUE")
    return {str(key): _checked(str(key), value, path) for key, value in document.items()}


def added(labels: Mapping[str, str], own: Mapping[str, str]) -> tuple[Labels, list[str]]:
    """Return labels with the user's own, and a warning for each that is left out."""
    result, warnings = dict(labels), []
    for key, value in own.items():
        name = value.removeprefix(REFERENCE)
        if key in labels:
            warnings.append(f"label {key} of the labels file is left out: nvct sets it")
        elif name == value:
            result[key] = value
        elif name in labels:
            result[key] = labels[name]
    return result, warnings


def _checked(key: str, value: object, path: str) -> str:
    if not is_key(key):
        raise DocumentError(f"labels file {path}: {key!r} is no key of a label")
    domain = f".{key.rpartition('/')[0]}"
    is_reserved, is_allowed = (
        any(domain.endswith(f".{name}") for name in names) for names in (RESERVED, ALLOWED)
    )
    if is_reserved and not is_allowed:
        raise DocumentError(
            f"labels file {path}: {key} is of a domain that is Kubernetes's own",
            hint=f"use another one, or {ALLOWED[0]}",
        )
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value) if isinstance(value, (str, int, float)) else None
    if text is not None and text.startswith(REFERENCE) and is_key(text[1:]):
        return text
    if text is None or not is_value(text):
        raise DocumentError(
            f"labels file {path}: {value!r} is no value of label {key}",
            hint="at most 63 of the characters A-Z a-z 0-9 - _ . with a letter or digit at both "
            "ends; or @ and the key of another label",
        )
    return text
