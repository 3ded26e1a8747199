# SPDX-License-Identifier: Apache-2.0
"""The results of checks: findings, and the part of a node that `nvct status` and `doctor` show."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from nvct.doctor.reasons import Reason

Severity: TypeAlias = Literal["ok", "unknown", "note", "warning", "error"]
Health: TypeAlias = Literal["ok", "absent", "attention"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's result for one reason."""

    reason: Reason
    # "ok" if the reason does not hold, "unknown" if that cannot be checked, "note" if it holds but
    # is no fault, "warning" if containers get GPUs nevertheless, else "error"
    severity: Severity
    evidence: str
    remedy: str = ""  # for this host; "" for the reason's own remedy
    context: str = ""

    @classmethod
    def each(cls, reason: Reason, severity: Severity, texts: Sequence[str]) -> list[Finding]:
        """Return a finding for each text, with the same reason."""
        return [cls(reason, severity, text) for text in texts]

    @property
    def is_fault(self) -> bool:
        """Whether somebody has to do something."""
        return self.severity in {"warning", "error"}

    def to_dict(self) -> dict[str, str]:
        """Return the finding as strings, with a remedy for every fault."""
        return {
            "reason": self.reason.name,
            "severity": self.severity,
            "evidence": "; ".join(text for text in (self.evidence, self.context) if text),
            "remedy": self.remedy or (self.reason.remedy if self.is_fault else ""),
        }


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "2 GPUs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def date(seconds: float) -> str:
    """Return seconds since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def listed(words: Sequence[str], most: int) -> str:
    """Return the first words of a list, and how many more there are."""
    rest = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + rest


LINES = 8  # Limit for a part; further lines are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A check's result for its part of a node."""

    name: str = ""  # the check's name; `checks.result` sets it
    health: Health  # "absent" if the part does not exist, which is not a fault
    lines: tuple[str, ...]  # sentences, the first one a summary
    findings: tuple[Finding, ...] = ()

    @classmethod
    def of(
        cls,
        *said: str | Finding,
        otherwise: str = "",
        findings: Sequence[Finding] = (),
        health: Health = "ok",
    ) -> Part:
        """Return a part, with the health "attention" if a finding is a fault.

        Each line is a text, or a finding whose evidence is shown. `otherwise` is shown if there is
        no line. `findings` are further findings, without lines.
        """
        findings = (*(line for line in said if isinstance(line, Finding)), *findings)
        lines = [line.evidence if isinstance(line, Finding) else line for line in said]
        if otherwise and not lines:
            lines = [otherwise]
        if any(finding.is_fault for finding in findings):
            health = "attention"
        if len(lines) > LINES:
            lines = [*lines[: LINES - 1], f"and {len(lines) - LINES + 1} more"]
        return cls(health=health, lines=tuple(lines), findings=findings)

    @classmethod
    def absent(cls, why: str | Finding) -> Part:
        """Return a part that this host lacks, with the reason."""
        return cls.of(why, health="absent")

    def to_dict(self) -> dict[str, object]:
        """Return the part for JSON."""
        return {
            "name": self.name,
            "health": self.health,
            "lines": list(self.lines),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def unseen(reason: Reason, path: str) -> Part | None:
    """Return a part for a path that this user may not read; None if the user may."""
    try:
        os.stat(path)
        if os.access(path, os.R_OK, effective_ids=True):
            return None
    except PermissionError:
        pass
    except OSError:
        return None
    text = f"{path} cannot be read: {os.strerror(errno.EACCES)}"
    return Part.absent(Finding(reason, "unknown", text))
