# SPDX-License-Identifier: Apache-2.0
"""Writes metrics in Prometheus' text format 0.0.4, with names and labels unchanged.

Contract: pure functions. prometheus-client is not used, because it adds _total to names and sorts
labels, but metrics of NVIDIA's programs must keep names and order. Source:
prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A value, and its labels in the order in which they are written."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All samples of one metric."""

    name: str  # of the metric; that of a counter ends with _total
    help: str
    kind: Literal["counter", "gauge", "histogram", "summary", "untyped"] = "gauge"
    fixed: bool = False  # whether values are written with six digits after the point, as C's %f
    samples: tuple[Sample, ...] = ()


def family(name: str, help_text: str, rows: Iterable[tuple[float, Mapping[str, str]]]) -> Family:
    """Return a metric with these values and labels: a counter if its name ends with _total."""
    samples = tuple(Sample(value=value, labels=labels) for value, labels in rows)
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return Family(name=name, help=help_text, kind=kind, samples=samples)


def text(families: Iterable[Family]) -> str:
    """Return the text of metrics; families of one name are merged, empty ones are left out."""
    merged: dict[str, list[Family]] = {}
    for each in families:
        merged.setdefault(each.name, []).append(each)
    lines = []
    for name, parts in merged.items():
        samples = [sample for part in parts for sample in part.samples]
        if samples:
            lines.append(f"# HELP {name} {_escaped(parts[0].help)}")
            lines.append(f"# TYPE {name} {parts[0].kind}")
            number = _fixed if parts[0].fixed else _number
            lines += [f"{name}{_labels(sample)} {number(sample.value)}" for sample in samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(sample: Sample) -> str:
    pairs = (
        '{}="{}"'.format(name, _escaped(value).replace('"', '\\"'))
        for name, value in sample.labels.items()
    )
    return f"{{{','.join(pairs)}}}" if sample.labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _fixed(value: float) -> str:
    return f"{value:f}" if math.isfinite(value) else _number(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(value)
