# SPDX-License-Identifier: Apache-2.0
"""Describes changes of the health of devices in sentences: for the log, Events and /status."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from nvct import typed
from nvct.agent.health.board import Change, Key
from nvct.agent.health.machine import FLAPPING, Health
from nvct.host.faults import REMEDIES
from nvct.host.nvml.model import XidEvent
from nvct.oci.jsontext import Json

LIMIT = 50  # Notices that are kept
AGAIN_S = 60.0  # How long the same sentence about the same device is not repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that happened to a device."""

    number: int  # increases by one with each notice of this boot
    at: float  # in seconds since 1970
    reason: str  # a word, as in the field `reason` of an Event
    message: str
    is_warning: bool  # whether somebody has to do something
    devices: tuple[str, ...] = ()  # the UUIDs of GPU and MIG devices concerned

    def describe(self) -> dict[str, Json]:
        """Return the notice as /status shows it."""
        return {**typed.dump(self), "at": round(self.at, 3)}


@dataclass(slots=True)
class Notices:
    """The last notices."""

    all: deque[Notice] = field(default_factory=lambda: deque(maxlen=LIMIT))
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def load(self, value: object) -> None:
        """Take over notices that an earlier process has described; ignore other data."""
        try:
            known = typed.load(tuple[Notice, ...], value)
        except typed.MalformedError:
            return
        self.all.extend(known)
        self._numbers = count(max((notice.number for notice in known), default=0) + 1)

    def add(
        self, reason: str, message: str, at: float, devices: Iterable[str], *, is_warning: bool
    ) -> Notice | None:
        """Add a notice, and return it; None if it repeats a recent one."""
        concerned = tuple(devices)
        for notice in self.all:
            is_same = (notice.message, notice.devices) == (message, concerned)
            if is_same and abs(at - notice.at) < AGAIN_S:
                return None
        notice = Notice(
            number=next(self._numbers), at=at, reason=reason, message=message,
            is_warning=is_warning, devices=concerned,
        )  # fmt: skip
        self.all.append(notice)
        return notice


def of_change(change: Change) -> tuple[str, str, bool]:
    """Return reason and message of a change's notice, and whether it is a warning."""
    name, after = name_of(change.key), change.after
    if after.state == "unhealthy":
        reason = "GPUFlapping" if after.reason.startswith(FLAPPING) else "GPUUnhealthy"
        return reason, f"{name} is unhealthy: {sentence(after)}", True
    if after.state == "suspect":
        return "GPUSuspect", f"{name} is suspect: {after.reason}", True
    if after.state == "probation":
        message = f"{name} is on probation: it no longer shows an error, after {after.reason}"
        return "GPUProbation", message, False
    return "GPUHealthy", f"{name} is healthy again", False


def of_application(event: XidEvent, reason: str) -> tuple[str, str]:
    """Return reason and message of an XID that an application has caused."""
    where = f" (GPU instance {event.gi})" if event.gi >= 0 else ""
    return "GPUApplicationError", f"{event.uuid}{where} reported {reason}; the GPU still works"


def sentence(health: Health) -> str:
    """Return why a device is not healthy, and what brings it back."""
    if health.state == "probation":
        return f"on probation after {health.reason}"
    remedy = REMEDIES.get(health.action, "") if health.action else ""
    return f"{health.reason}; {remedy}" if remedy else health.reason


def name_of(key: Key) -> str:
    """Return a device's name for a sentence."""
    instance = f" GPU instance {key.gi}" if key.gi >= 0 else ""
    compute = f" compute instance {key.ci}" if key.ci >= 0 else ""
    return f"{key.gpu}{instance}{compute}"
