# SPDX-License-Identifier: Apache-2.0
"""Errors of GPUs (NVML's values, and XIDs), and the action that each asks for.

The actions of XIDs are in `xids.csv`, in an administrator's table, and in two variables of
NVIDIA's device plugin, with the meaning that it documents: `DP_DISABLE_HEALTHCHECKS` has XIDs to
ignore, `DP_ENABLE_HEALTHCHECKS` has exceptions. With `is_incumbent`, the plugin's own list of
ignored XIDs (APPLICATION) counts, not the table. Source of the numbers: nvml.h.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from nvct.errors import DocumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.sample_model import GpuCondition  # 5 ms of a device plugin's start

Action = Literal["ignore", "application", "watch", "reset", "reboot", "replace"]
ACTIONS: tuple[Action, ...] = ("ignore", "application", "watch", "reset", "reboot", "replace")
"""What an error can ask for, by severity. From `reset` on, the device is not offered."""
SEVERE: tuple[Action, ...] = ("reset", "reboot", "replace")
REMEDIES: dict[Action, str] = {
    "reset": "reset the GPU",
    "reboot": "reboot the node",
    "replace": "have the GPU looked at; it stays out until the node boots",
}
LASTING: tuple[Action, ...] = ("reboot", "replace")
"""The device stays unhealthy until the machine boots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error, and the action that it asks for."""

    action: Action
    reason: str

    @property
    def severity(self) -> int:
        """Return a number that is larger for a worse error."""
        return ACTIONS.index(self.action)


def worst(faults: Iterable[Fault]) -> Fault | None:
    """Return the worst fault, the first one of equally bad ones; None if there is none."""
    return max(faults, key=lambda fault: fault.severity, default=None)


GPU_IS_LOST, RESET_REQUIRED = 15, 16  # NVML_ERROR_*
RECOVERY = {
    1: Fault(action="reset", reason="the driver asks for a reset of the GPU"),
    2: Fault(action="reboot", reason="the driver asks for a reboot"),
    3: Fault(action="watch", reason="the driver asks to end peer-to-peer traffic (drain P2P)"),
    4: Fault(action="reset", reason="the driver asks to drain the GPU and to reset it"),
}
"""NVML_GPU_RECOVERY_ACTION_*; 0 is none."""


XID, LOST = re.compile(r"\bXID (\d+)"), "the GPU is lost"


def xid_of(reason: str) -> int:
    """Return the XID that a sentence about a GPU names, 0 if it names none."""
    found = XID.search(reason)
    return int(found[1]) if found else 0


def hanging(reason: str) -> str:
    """Return the sentence about a GPU that does not answer."""
    return f"the GPU does not answer: {reason}"


def of_condition(gpu: GpuCondition) -> Iterator[Fault]:
    """Yield the faults that NVML's values of a GPU show."""
    if gpu.code == GPU_IS_LOST:
        yield Fault(action="reboot", reason=f"{LOST} ({gpu.error})")
    elif gpu.error:
        yield Fault(action="reset", reason=f"NVML refuses the GPU ({gpu.error})")
    recovery = RECOVERY.get(int(gpu.values.get("recovery_action", 0)))
    if recovery is not None:
        yield recovery
    if gpu.values.get("remap_failed"):
        yield Fault(action="replace", reason="a row of the memory cannot be remapped")
    if gpu.values.get("remap_pending"):
        yield Fault(action="watch", reason="a row of the memory is remapped at the next reset")
    if gpu.values.get("retired_pending"):
        yield Fault(action="watch", reason="a page of the memory is retired at the next reset")
    if errors := int(gpu.values.get("ecc_uncorrected", 0)):
        reason = f"uncorrected memory errors since the last reset: {errors}"
        yield Fault(action="watch", reason=reason)


XidAction: TypeAlias = Literal["ignore", "application", "reset", "reboot", "replace"]
Rows: TypeAlias = Mapping[int, "Row"]

FILE = os.path.join(os.path.dirname(__file__), "xids.csv")
COLUMNS = ["xid", "action", "name", "source", "date"]
OF_NVIDIA = "err_msg"
"""The column after COLUMNS: NVIDIA's text, which a line can have without an action."""
XID_ACTIONS = ("ignore", "application", "reset", "reboot", "replace")
DIGITS = 6  # XIDs are below 1000; a longer number is not an XID
APPLICATION = frozenset({13, 31, 43, 45, 68, 109})  # XIDs that NVIDIA's device plugin 0.20 ignores
DISABLE_ENV, ENABLE_ENV = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
ALL = ("all", "xids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the XID table."""

    xid: int
    action: XidAction
    name: str = ""
    source: str = ""
    date: str = ""  # of the last comparison with the source, YYYY-MM-DD


UNKNOWN: XidAction = "reset"
"""The action of an XID without a line, as in NVIDIA's device plugin: pods do not get the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Which XIDs the variables switch on and off."""

    ignored: frozenset[int] = frozenset()  # XIDs that have no effect
    counted: frozenset[int] = frozenset()  # make a device unhealthy, whatever the table says
    # ignores_all, counts_all: whether all XIDs are in that set
    ignores_all: bool = False
    counts_all: bool = False
    looks: bool = True  # whether NVML's values count; False if all checks are off
    malformed: tuple[str, ...] = ()  # words of the variables that are not XIDs


@dataclass(frozen=True, slots=True, kw_only=True)
class XidTable:
    """The XID table in force, with the variables' checks."""

    rows: Rows = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks)
    is_incumbent: bool = False  # as in NVIDIA's plugin, every XID outside APPLICATION counts

    def action(self, xid: int) -> XidAction:
        """Return the action that an XID asks for."""
        row, checks = self.rows.get(xid), self.checks
        action: XidAction = row.action if row else UNKNOWN
        counted: XidAction = "reset" if action in ("ignore", "application") else action
        if checks.counts_all or xid in checks.counted:
            return counted
        if checks.ignores_all or xid in checks.ignored:
            return "ignore"
        if self.is_incumbent:
            return "application" if xid in APPLICATION else counted
        return action

    def fault(self, xid: int) -> Fault:
        """Return an XID as a fault."""
        row = self.rows.get(xid)
        name = f" ({row.name})" if row and row.name else ""
        return Fault(action=self.action(xid), reason=f"XID {xid}{name}")


def read(path: str | os.PathLike[str] = FILE) -> dict[int, Row]:
    """Return the lines of a table by XID.

    Only the first two columns are required. DocumentError if the file cannot be read, or a line is
    malformed (with its number).
    """
    rows: dict[int, Row] = {}
    for where, words in _lines(path):
        if len(words) == len(COLUMNS) + 1:
            words.pop()
            if not words[1]:
                continue
        row = _row(words, where)
        if row.xid in rows:
            raise DocumentError(f"{where}: XID {row.xid} has a line already")
        rows[row.xid] = row
    return rows


def texts() -> dict[int, str]:
    """Return NVIDIA's text of each XID that has one."""
    return {int(words[0]): words[-1] for _, words in _lines(FILE) if words[-1]}


def _lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DocumentError(f"cannot read the XID table {path}: {why}") from error
    header = [*COLUMNS, OF_NVIDIA]
    for number, line in enumerate(text.splitlines(), 1):
        where = f"line {number} of {path}"
        try:
            words = [word.strip() for word in next(csv.reader([line]), [])]
        except csv.Error as error:
            raise DocumentError(f"{where}: {error}") from error
        if any(words) and not words[0].startswith("#") and words != header[: len(words)]:
            yield where, words


def checks(env: Mapping[str, str]) -> Checks:
    """Return the checks that the two variables switch on and off."""
    ignored, off, wrong = _xids(env.get(DISABLE_ENV, ""))
    counted, on, more_wrong = _xids(env.get(ENABLE_ENV, ""))
    return Checks(
        ignored=ignored,
        counted=counted,
        ignores_all=bool(off),
        counts_all=bool(on),
        looks="all" not in off,
        malformed=(*wrong, *more_wrong),
    )


def _row(words: list[str], where: str) -> Row:
    if not 2 <= len(words) <= len(COLUMNS):
        raise DocumentError(
            f"{where} has {len(words)} parts, not 2 to 5", hint="write XID,ACTION,NAME"
        )
    xid, action = words[:2]
    if not _is_xid(xid):
        raise DocumentError(f"{where}: {xid!r} is not an XID")
    if action not in XID_ACTIONS:
        raise DocumentError(
            f"{where}: unknown action {action!r}", hint=f"one of {', '.join(XID_ACTIONS)}"
        )
    more = dict(zip(COLUMNS[2:], words[2:], strict=False))
    return Row(xid=int(xid), action=cast("XidAction", action), **more)


def _xids(text: str) -> tuple[frozenset[int], frozenset[str], tuple[str, ...]]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    numbers = [word for word in words if _is_xid(word)]
    wrong = tuple(word for word in words if word not in ALL and word not in numbers)
    return frozenset(map(int, numbers)), frozenset(words) & frozenset(ALL), wrong


def _is_xid(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= DIGITS
