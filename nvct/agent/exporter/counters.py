# SPDX-License-Identifier: Apache-2.0
"""Reads counter files, which list the metrics with their types and help texts.

The format is that of NVIDIA's exporter: a line is `FIELD, TYPE, help`, a comment begins with #.
TYPE label makes a label of a field.

The names of metrics are DCGM's fields; each is computed from a value of NVML. Source:
dcgm-exporter's counter files of 2026-05. Where a help text differs from what DCGM 4.6 computes
(DcgmCacheManager.cpp), the field is computed as DCGM does. The second name of a field is that of
dcgm-exporter 1 (etc/1.x-compatibility-metrics.csv).
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

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
"""The files that replace those of NVIDIA's image; the first two of these have the same metrics."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of a counter file."""

    name: str
    kind: Kind
    help: str
    field: str  # the field that it shows; for a name of version 1, they differ
    reason: str = ""  # why it has no series; "" if it can have some


def read(path: str) -> tuple[tuple[Counter, ...], list[str]]:
    """Return the counters of a file, each metric once, and warnings about lines without effect.

    A field that nvct does not read is not an error: its counter has a reason. DocumentError if the
    file cannot be read, or, with the line's number, if a line is malformed.
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
            warnings.append(f"{where} has no effect: an earlier line has {counter.name}")
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
        raise DocumentError(f"{where}: {name!r} is not a field", hint="see docs/metrics.md")
    if kind not in KINDS:
        raise DocumentError(
            f"{where}: unknown type {kind!r}", hint=f"use one of {', '.join(KINDS)}"
        )
    field = VERSION_1.get(name, name)
    reason = why_not(field, is_label=kind == "label")
    return Counter(name, cast("Kind", kind), help_text, field, reason)


@dataclass(frozen=True, slots=True)
class Field:
    """How a field is computed from a sample."""

    value: str  # a name in `sample_model.VALUES`
    divisor: int = 1
    # whether DCGM has it as a floating-point number, which is written with 6 digits
    is_float: bool = False


XID = "DCGM_FI_DEV_XID_ERRORS"
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
CLOCK_EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"
NVLINK_TOTAL = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
LINK_RATES = {
    NVLINK_TOTAL: ("nvlink_tx", "nvlink_rx"),
    "DCGM_FI_DEV_NVLINK_TX_BANDWIDTH_TOTAL": ("nvlink_tx",),
    "DCGM_FI_DEV_NVLINK_RX_BANDWIDTH_TOTAL": ("nvlink_rx",),
}
"""Despite TOTAL, DCGM's values are rates since the sample before, in whole 1000 KiB a second."""
LINK_UNIT = 1000
COMPUTED = (XID, XID_COUNT, CLOCK_EVENTS, *LINK_RATES)
"""Metrics that need more than one sample."""

FIELDS: dict[str, Field] = {}
VERSION_1: dict[str, str] = {}  # The field of each name of version 1


def _read_fields() -> None:
    """Fill FIELDS and VERSION_1 from fields.csv, in which a field of COMPUTED has no value."""
    with Path(__file__).with_name("fields.csv").open(encoding="ascii") as file:
        for name, value, divisor, form, old in list(csv.reader(file))[1:]:
            if value:
                FIELDS[name] = Field(value, int(divisor or 1), form == "float")
            if old:
                VERSION_1[old] = name


_read_fields()
FAMILIES = {
    "DCGM_EXP_GPU_HEALTH_STATUS": "it needs DCGM's health watches",
    "DCGM_EXP_P2P_STATUS": "nvct does not read it",
    "DCGM_FI_DEV_NVSWITCH_": "nvct reads no NVSwitches",
    "DCGM_FI_DEV_CPU_": "nvct reads GPUs only",
    "DCGM_FI_DEV_VGPU_": "nvct does not read values of vGPUs on their host",
    "DCGM_FI_DEV_NVLINK_": "nvct reads the sum of all links only",
    "DCGM_FI_PROF_NVLINK_": "nvct reads the sum of all links only",
    "DCGM_FI_PROF_": "it needs DCGM's profiling module",
    "DCGM_FI_": "nvct does not read it",
}
"""Why other fields have no series: the first prefix that fits the name counts."""
UNKNOWN = "nvct knows no such field"
LABELS = (
    "DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_DEV_SERIAL",
    "DCGM_FI_DEV_VBIOS_VERSION", "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_UUID",
    "DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_BRAND",
)  # fmt: skip
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan",
    "NVIDIA Virtual Applications", "NVIDIA Virtual PC", "NVIDIA Virtual Compute Server",
    "NVIDIA RTX Virtual Workstation", "NVIDIA vGaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA",
    "GeForce RTX", "Titan RTX",
)  # fmt: skip
"""By NVML's number, as DCGM writes it."""


def why_not(name: str, *, is_label: bool) -> str:
    """Return why a field cannot have series, or cannot be a label; "" if it can."""
    if name in LABELS:
        return "" if is_label else "it is a text: its type must be label"
    if name in FIELDS:
        return ""
    if name in COMPUTED:
        return "it needs several samples, so it cannot be a label" if is_label else ""
    for prefix, why in FAMILIES.items():
        if name.startswith(prefix):
            return why
    return UNKNOWN
