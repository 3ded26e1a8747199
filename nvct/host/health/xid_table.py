# SPDX-License-Identifier: Apache-2.0
"""What each XID asks for: the table of this package, lines of the administrator's own, variables.

`DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS` have the meaning that NVIDIA's device plugin
documents: XIDs to be ignored, and exceptions. Its own list of ignored XIDs stays in force.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from nvct.errors import DocumentError
from nvct.host.health.faults import Fault

XidAction: TypeAlias = Literal["ignore", "application", "reset", "reboot", "replace"]
Rows: TypeAlias = Mapping[int, "Row"]

FILE = os.path.join(os.path.dirname(__file__), "xids.csv")
COLUMNS = ["xid", "action", "name", "source", "date"]
OF_NVIDIA = "err_msg"
"""The column after these: NVIDIA's text, which a line may have without an action."""
ACTIONS = ("ignore", "application", "reset", "reboot", "replace")
DIGITS = 6
"""XIDs are below 1000; a longer number is none."""
APPLICATION = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that NVIDIA's device plugin 0.20 ignores."""
DISABLE_ENV, ENABLE_ENV = "DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"
ALL = ("all", "xids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table.

    Attributes:
        name: a few words about the error.
        source: who decided on the action.
        date: of the last comparison with the source, YYYY-MM-DD.
    """

    xid: int
    action: XidAction
    name: str = ""
    source: str = ""
    date: str = ""


UNKNOWN: XidAction = "reset"
"""Of an XID without a line, as in NVIDIA's device plugin: pods do not get the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Which XIDs the variables switch on and off.

    Attributes:
        ignored: XIDs that have no effect.
        counted: XIDs that make a device unhealthy, whatever the table says.
        ignores_all, counts_all: whether all XIDs are in that set.
        looks: whether NVML's values count; False if all checks are off.
        malformed: words of the variables that are no XID.
    """

    ignored: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()
    ignores_all: bool = False
    counts_all: bool = False
    looks: bool = True
    malformed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidTable:
    """The table in force.

    Attributes:
        rows: by XID.
        checks: of the variables.
        is_incumbent: whether every XID counts that NVIDIA's device plugin does not ignore.
    """

    rows: Rows = field(default_factory=dict)
    checks: Checks = field(default_factory=Checks)
    is_incumbent: bool = False

    def action(self, xid: int) -> XidAction:
        """Return what an XID asks for."""
        row, checks = self.rows.get(xid), self.checks
        action: XidAction = row.action if row else UNKNOWN
        if checks.counts_all or xid in checks.counted:
            return action if action not in ("ignore", "application") else "reset"
        if checks.ignores_all or xid in checks.ignored:
            return "ignore"
        if self.is_incumbent:
            if xid in APPLICATION:
                return "application"
            return action if action not in ("ignore", "application") else "reset"
        return action

    def fault(self, xid: int) -> Fault:
        """Return the fault that an XID tells of."""
        row = self.rows.get(xid)
        name = f" ({row.name})" if row and row.name else ""
        return Fault(action=self.action(xid), reason=f"XID {xid}{name}")


def read(path: str | os.PathLike[str] = FILE) -> dict[int, Row]:
    """Return the lines of a table by XID.

    Only the first two columns must be there.

    Raises:
        DocumentError: the file cannot be read, or a line is malformed; the message has its number.
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
    """Yield the place and the words of each line that has an XID."""
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
    """Return what the variables say."""
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
        raise DocumentError(f"{where}: {xid!r} is no XID")
    if action not in ACTIONS:
        raise DocumentError(
            f"{where}: unknown action {action!r}", hint=f"one of {', '.join(ACTIONS)}"
        )
    more = dict(zip(COLUMNS[2:], words[2:], strict=False))
    return Row(xid=int(xid), action=cast("XidAction", action), **more)


def _xids(text: str) -> tuple[frozenset[int], frozenset[str], tuple[str, ...]]:
    """Return the XIDs of a variable, the words for all of them, and what is neither."""
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    numbers = [word for word in words if _is_xid(word)]
    wrong = tuple(word for word in words if word not in ALL and word not in numbers)
    return frozenset(map(int, numbers)), frozenset(words) & frozenset(ALL), wrong


def _is_xid(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= DIGITS
