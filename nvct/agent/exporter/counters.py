# SPDX-License-Identifier: Apache-2.0
"""Reads counter files: which metrics there are, their types and help texts.

The format is that of NVIDIA's exporter: a line is `FIELD, TYPE, help`, a comment begins with #.
TYPE label makes a label of a field.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

from nvct.agent.exporter import fields
from nvct.errors import DocumentError

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary", "label"]
KINDS = ("counter", "gauge", "histogram", "summary", "label")
DEFAULT = Path(__file__).with_name("default-counters.csv")


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of a counter file.

    Attributes:
        name: of the metric.
        field: the field that it shows, differs from the name for those of version 1.
    """

    name: str
    kind: Kind
    help: str
    field: str


def read(path: str) -> tuple[Counter, ...]:
    """Return the counters of a file.

    Raises:
        DocumentError: the file cannot be read, or a line is malformed; the message has its number.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DocumentError(f"cannot read the counter file {path}: {why}") from error
    counters = [
        _counter(line, f"line {number} of {path}")
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    names = [counter.name for counter in counters]
    for name in names:
        if names.count(name) > 1:
            raise DocumentError(f"{path} has {name} twice", hint="remove one of the lines")
    if not counters:
        raise DocumentError(f"{path} has no counters")
    return tuple(counters)


def _counter(line: str, where: str) -> Counter:
    words = [word.strip(" ") for word in next(csv.reader([line], strict=False))]
    if len(words) != 3:
        raise DocumentError(
            f"{where} has {len(words)} parts, not 3", hint="write FIELD, TYPE, help"
        )
    name, kind, help_text = words
    field = fields.canonical(name)
    if not field:
        raise DocumentError(f"{where}: unknown field {name!r}", hint="see docs/metrics.md")
    if kind not in KINDS:
        raise DocumentError(f"{where}: unknown type {kind!r}", hint=f"one of {', '.join(KINDS)}")
    if kind == "label" and field not in (*fields.LABELS, *fields.UNAVAILABLE):
        raise DocumentError(f"{where}: {name} is a number and no label")
    if kind != "label" and field in fields.LABELS:
        raise DocumentError(f"{where}: {name} is a text", hint="its type is label")
    return Counter(name, cast("Kind", kind), help_text, field)
