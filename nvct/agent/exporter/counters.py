# SPDX-License-Identifier: Apache-2.0
"""Reads counter files: which metrics there are, their types and help texts.

The format is that of NVIDIA's exporter: a line is `FIELD, TYPE, help`, a comment begins with #.
TYPE label makes a label of a field.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

from nvct.agent.exporter import fields
from nvct.errors import DocumentError

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary", "label"]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KINDS = ("counter", "gauge", "histogram", "summary", "label")
DEFAULT, OF_VERSION_1 = (
    Path(__file__).with_name(f"{name}.csv")
    for name in ("default-counters", "1.x-compatibility-metrics")
)
BUILT_IN = {
    "/etc/dcgm-exporter/default-counters.csv": DEFAULT,
    "/etc/dcgm-exporter/dcp-metrics-included.csv": DEFAULT,
    "/etc/dcgm-exporter/1.x-compatibility-metrics.csv": OF_VERSION_1,
}
"""What stands for the counter files of NVIDIA's image; the first two name the same metrics."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of a counter file.

    Attributes:
        field: the field that it shows, differs from the name for those of version 1.
        reason: why it has no series; "" if it may have some.
    """

    name: str
    kind: Kind
    help: str
    field: str
    reason: str = ""


def read(path: str) -> tuple[tuple[Counter, ...], list[str]]:
    """Return the counters of a file, each metric once, and warnings: lines without effect.

    A field that nvct does not read is no error: it is a counter with a reason.

    Raises:
        DocumentError: the file cannot be read, or a line is malformed; the message has its number.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DocumentError(f"cannot read the counter file {path}: {why}") from error
    counters: dict[str, Counter] = {}
    warnings: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number} of {path}"
        counter = _counter(line, where)
        if counter.name in counters:
            warnings.append(f"{where} has no effect: {counter.name} has a line before it")
        elif counter.reason and path not in map(str, BUILT_IN.values()):
            warnings.append(f"{where}: {counter.name} has no series: {counter.reason}")
        counters.setdefault(counter.name, counter)
    if not counters:
        raise DocumentError(f"{path} has no counters")
    return tuple(counters.values()), warnings


def _counter(line: str, where: str) -> Counter:
    words = [word.strip(" ") for word in next(csv.reader([line], strict=False))]
    if len(words) != 3:
        raise DocumentError(
            f"{where} has {len(words)} parts, not 3", hint="write FIELD, TYPE, help"
        )
    name, kind, help_text = words
    if not NAME.fullmatch(name):
        raise DocumentError(f"{where}: {name!r} is no name of a field", hint="see docs/metrics.md")
    if kind not in KINDS:
        raise DocumentError(f"{where}: unknown type {kind!r}", hint=f"one of {', '.join(KINDS)}")
    field = fields.VERSION_1.get(name, name)
    reason = fields.reason(field, is_label=kind == "label")
    return Counter(name, cast("Kind", kind), help_text, field, reason)
