# SPDX-License-Identifier: Apache-2.0
"""What checks yield: findings; and what `nvct status` shows about each part of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from nvct.doctor.reasons import Reason

Severity: TypeAlias = Literal["ok", "unknown", "note", "warning", "error"]
Health: TypeAlias = Literal["ok", "absent", "attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found out about one reason.

    Attributes:
        severity: "ok" if the reason does not hold, "unknown" if that cannot be seen, "note" if it
            holds and is no fault, "warning" if containers get GPUs nevertheless, else "error".
        evidence: what was seen, one sentence with the value and the path.
        context: more that was seen, "" if nothing.
        remedy: for this host; "" if there is none more exact than the reason's.
    """

    reason: Reason
    severity: Severity
    evidence: str
    context: str = ""
    remedy: str = ""

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
    """Return a number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a node.

    Attributes:
        name: config, driver, specs, plans, farm, engines or units.
        health: "absent" if the part does not exist, which is not a fault.
        lines: sentences, the first one a summary.
        findings: the content of the lines, as values.
    """

    name: str
    health: Health
    lines: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the part as JSON has it."""
        return {
            "name": self.name,
            "health": self.health,
            "lines": list(self.lines),
            "findings": [finding.to_dict() for finding in self.findings],
        }
