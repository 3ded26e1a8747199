# SPDX-License-Identifier: Apache-2.0
"""The health of one GPU or MIG instance: a state, and how each event changes it.

Contract: pure functions of values; times are seconds of CLOCK_MONOTONIC, which all processes of
one boot share. docs/health.md describes the states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from nvct.host.faults import ACTIONS, LASTING, SEVERE, Action, Fault, worst

State = Literal["healthy", "suspect", "unhealthy", "probation"]
STATES: tuple[State, ...] = ("healthy", "suspect", "unhealthy", "probation")
OFFERED = ("healthy", "suspect")  # The states in which pods can have the device
FLAPPING = "flapping"  # The first word of the reason of a device that came back too often


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers of the state machine.

    Attributes:
        recovers: if False, an unhealthy device stays so, and only XIDs count.
        probation_s: how long a device must show no error before it is offered again.
        looks: how many looks in a row must find an error before it counts.
        returns, window_s: a device that became healthy again so often in that time is unhealthy
            for good at its next error.
    """

    recovers: bool = True
    probation_s: float = 60.0
    looks: int = 2
    returns: int = 3
    window_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of a device."""

    state: State = "healthy"
    action: Action | Literal[""] = ""  # that the fault asks for; "" for a healthy device
    reason: str = ""  # a sentence; "" for a healthy device
    since: float = 0.0
    seen: int = 0  # how many looks in a row have found the fault of a suspect
    # whether only a reset ends the fault: an XID reports an error, but not its end
    must_reset: bool = False
    asked: bool = False  # whether the driver has asked for a recovery since the fault
    returns: tuple[float, ...] = ()  # when the device came back, the last ones

    @property
    def is_offered(self) -> bool:
        """Return whether pods can have the device."""
        return self.state in OFFERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """The driver reported an XID that asks for a reset or more."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The device was looked at."""

    faults: tuple[Fault, ...] = ()
    asks: bool = False  # whether the driver asks for a recovery
    was_reset: bool = False  # whether the device was reset since the look before


@dataclass(frozen=True, slots=True)
class Forget:
    """The administrator considers the device healthy."""


Event: TypeAlias = "Xid | Look | Forget"


def step(health: Health, event: Event, now: float, rules: Rules) -> Health:
    """Return the state after an event."""
    if isinstance(event, Forget):
        return Health(since=now)
    if isinstance(event, Xid):
        return _after_xid(health, event.fault, now, rules)
    if not rules.recovers:
        return health
    if health.state in OFFERED:
        return _offered(health, event, now, rules)
    if health.state == "probation":
        return _probation(health, event, now, rules)
    return _unhealthy(health, event, now)


def _after_xid(health: Health, fault: Fault, now: float, rules: Rules) -> Health:
    if health.state != "unhealthy":
        return _failed(health, fault, now, rules, must_reset=True)
    worse = _worse(health, fault)
    return replace(worse, must_reset=True)


def _offered(health: Health, look: Look, now: float, rules: Rules) -> Health:
    fault = worst(look.faults)
    if fault is None:
        well = Health(since=now, returns=health.returns)
        return health if health.state == "healthy" else well
    is_same = health.state == "suspect" and health.action == fault.action
    seen = health.seen + 1 if is_same else 1
    if fault.action in SEVERE and seen >= rules.looks:
        return _failed(health, fault, now, rules, must_reset=False)
    return Health(
        state="suspect",
        action=fault.action,
        reason=fault.reason,
        since=health.since if health.state == "suspect" else now,
        seen=seen,
        returns=health.returns,
    )


def _unhealthy(health: Health, look: Look, now: float) -> Health:
    known = replace(
        health,
        must_reset=health.must_reset and not look.was_reset,
        asked=health.asked or look.asks,
    )
    fault = _severe(look)
    if fault is not None:
        return _worse(known, fault)
    is_over = known.asked or not known.must_reset
    if known.action in LASTING or look.asks or not is_over:
        return known
    return replace(known, state="probation", since=now, must_reset=False, asked=False)


def _probation(health: Health, look: Look, now: float, rules: Rules) -> Health:
    fault = _severe(look)
    if fault is not None:
        return _failed(health, fault, now, rules, must_reset=False)
    if now - health.since < rules.probation_s:
        return health
    recent = tuple(at for at in health.returns if now - at < rules.window_s)
    return Health(since=now, returns=(*recent, now))


def _failed(health: Health, fault: Fault, now: float, rules: Rules, *, must_reset: bool) -> Health:
    """Return an unhealthy device: for good if it became healthy again too often."""
    recent = tuple(at for at in health.returns if now - at < rules.window_s)
    if health.is_offered and len(recent) >= rules.returns:
        reason = f"{FLAPPING}: it came back {len(recent)} times in an hour; {fault.reason}"
        fault = Fault(action="replace", reason=reason)
    return Health(
        state="unhealthy",
        action=fault.action,
        reason=fault.reason,
        since=now,
        must_reset=must_reset,
        returns=health.returns,
    )


def _worse(health: Health, fault: Fault) -> Health:
    """Return an unhealthy device after one more fault."""
    if health.action and fault.severity <= ACTIONS.index(health.action):
        return health
    return replace(health, action=fault.action, reason=fault.reason)


def _severe(look: Look) -> Fault | None:
    return worst(fault for fault in look.faults if fault.action in SEVERE)
