# SPDX-License-Identifier: Apache-2.0
"""The healing of one GPU that has failed: a step, and how each look changes it.

Contract: pure functions of values; times are seconds of CLOCK_MONOTONIC, which all processes of
one boot share. docs/heal.md describes the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from nvct.agent.health.machine import Health
from nvct.host.faults import ACTIONS, REMEDIES, Action
from nvct.host.nvml.model import GpuLink, NvmlGpu

TASK = "heal"
Step: TypeAlias = Literal[
    "quarantined", "evicting", "releasing", "resetting", "checking", "probation", "requested",
    "failed",
]  # fmt: skip
STEPS: tuple[Step, ...] = get_args(Step)
LEVELS = ("quarantine", "evict", "reset", "reboot-request")
"""How far a GPU is healed; each level does all that the one before does."""
HEALING: tuple[Step, ...] = ("evicting", "releasing", "resetting", "checking")
"""Steps in which this node counts as one that heals."""
LEAST: Mapping[Step, str] = {
    "evicting": "evict", "releasing": "reset", "resetting": "reset", "checking": "reset",
}  # fmt: skip
"""The level that a step needs."""
OLDEST_ALONE = (8, 0)
"""The first CUDA compute capability that is reset alone despite NVLink: Ampere (nvidia-smi -r)."""
ON_SWITCHES = "SXM3"
"""A part of the name of older GPUs whose NVLinks lead to NVSwitches, not to other GPUs: DGX-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers of the state machine, in seconds.

    Attributes:
        quarantine_s: how long a GPU has to recover by itself before its pods are evicted.
        evict_s: how long evicted pods have to end.
        let_go_s, release_s: how long a GPU must be unused before a reset, and how long processes
            have to close it.
        check_s: how long a GPU has after a reset to show no error.
        retry_s: how long after a failure the healing begins again.
    """

    level: str
    quarantine_s: float = 30.0
    evict_s: float = 1800.0
    let_go_s: float = 5.0
    release_s: float = 60.0
    check_s: float = 120.0
    retry_s: float = 600.0

    def allows(self, step: Step) -> bool:
        """Return whether the level goes as far as a step."""
        return LEVELS.index(self.level) >= LEVELS.index(LEAST.get(step, "quarantine"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The state of a GPU's healing.

    Attributes:
        reason: why it waits, why it requests an action, or why it has failed.
        action: the requested one; "" in other steps.
        gpus: UUIDs of the GPUs that are reset together, including this one.
        refusal: why they cannot be reset, "" if they can.
    """

    step: Step
    since: float
    reason: str = ""
    action: Action | Literal[""] = ""
    gpus: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The facts about a GPU that its step needs.

    Attributes:
        wait: why the healing must not begin now, "" if it can.
        gpus, refusal: as in a record; () if that is unknown.
        users: the pods that have these GPUs, None if that is unknown.
        holders: the processes that have them open, same.
        unknown: why a fact that the step needs is unknown, "" if none is.
        outcome: of the reset: "" if it worked, else why not; None if there was none yet.
    """

    health: Health
    wait: str = ""
    gpus: tuple[str, ...] = ()
    refusal: str = ""
    users: tuple[str, ...] | None = None
    holders: tuple[str, ...] | None = None
    unknown: str = ""
    outcome: str | None = None


def step(record: Record | None, look: Look, now: float, rules: Rules) -> Record | None:
    """Return the record after a look; None is a GPU that needs nothing."""
    health = look.health
    if record is None or record.step == "probation":
        if health.state == "unhealthy":
            return Record(step="quarantined", since=now, reason=health.reason)
        return record if health.state == "probation" else None
    if record.step == "resetting":
        return _resetting(record, look, now)
    if health.is_offered:
        return None
    if health.state == "probation":
        return Record(step="probation", since=now, reason=health.reason)
    return NEXT[record.step](record, look, now, rules)


def _quarantined(record: Record, look: Look, now: float, rules: Rules) -> Record:
    if not rules.allows("evicting") or now - record.since < rules.quarantine_s:
        return replace(record, reason=look.health.reason)
    if look.wait:
        return replace(record, reason=look.wait)
    if not look.gpus:
        return replace(record, reason=look.unknown or record.reason)
    return Record(step="evicting", since=now, gpus=look.gpus, refusal=look.refusal)


def _evicting(record: Record, look: Look, now: float, rules: Rules) -> Record:
    if look.users is None or look.users:
        reason = look.unknown or "; ".join(look.users or ())
        if now - record.since < rules.evict_s:
            return replace(record, reason=reason)
        return _failed(f"pods have not ended within {rules.evict_s:g} s: {reason}", now)
    health = look.health
    if health.action != "reset" or not rules.allows("releasing"):
        return _requested(health.action or "reset", health.reason, now)
    if record.refusal:
        return _requested("reset", f"{health.reason}; {record.refusal}", now)
    return Record(step="releasing", since=now, gpus=record.gpus)


def _releasing(record: Record, look: Look, now: float, rules: Rules) -> Record:
    waited_s = now - record.since
    if look.holders or look.unknown:
        reason = look.unknown or f"the GPU is in use: {'; '.join(look.holders or ())}"
        return (
            _failed(reason, now) if waited_s >= rules.release_s else replace(record, reason=reason)
        )
    if look.holders is None and waited_s >= rules.release_s:
        reason = f"{look.health.reason}; it is not known which processes have it open"
        return _requested("reboot", reason, now)
    if look.holders is None or waited_s < rules.let_go_s:
        return record
    return Record(step="resetting", since=now, gpus=record.gpus)


def _resetting(record: Record, look: Look, now: float) -> Record:
    if look.unknown:  # NVML's worker has ended, perhaps before it reset anything
        return Record(step="releasing", since=now, reason=look.unknown, gpus=record.gpus)
    if look.outcome is None:
        return record
    if look.outcome and look.holders:  # a process has opened it meanwhile
        return _failed(f"the GPU is in use: {'; '.join(look.holders)}", now)
    if look.outcome:
        return _requested("reboot", f"{look.health.reason}; no reset: {look.outcome}", now)
    return Record(step="checking", since=now, gpus=record.gpus)


def _checking(record: Record, look: Look, now: float, rules: Rules) -> Record:
    if now - record.since < rules.check_s:
        return replace(record, reason=look.health.reason)
    return _requested("reboot", f"{look.health.reason}; the reset has not helped", now)


def _requesting(record: Record, look: Look, now: float, rules: Rules) -> Record:
    """Request a stronger action for a GPU that gets worse."""
    del rules
    action = look.health.action
    if action and record.action and ACTIONS.index(action) > ACTIONS.index(record.action):
        return _requested(action, look.health.reason, now)
    return record


def _having_failed(record: Record, look: Look, now: float, rules: Rules) -> Record:
    if now - record.since < rules.retry_s:
        return record
    return Record(step="quarantined", since=now, reason=look.health.reason)


def _requested(action: Action, reason: str, now: float) -> Record:
    return Record(step="requested", since=now, reason=reason, action=action)


def _failed(reason: str, now: float) -> Record:
    return Record(step="failed", since=now, reason=reason)


NEXT: Mapping[Step, Callable[[Record, Look, float, Rules], Record]] = {
    "quarantined": _quarantined,
    "evicting": _evicting,
    "releasing": _releasing,
    "checking": _checking,
    "requested": _requesting,
    "failed": _having_failed,
}


def resumed(record: Record, now: float, rules: Rules) -> Record:
    """Return the record with which a process goes on from this one of an earlier process.

    Healing that had not reset the GPU begins again, without the quarantine: the GPUs to reset
    together and the level may have changed. The outcome of a reset is unknown: if it worked, the
    health of the GPU shows it.
    """
    if record.step in ("evicting", "releasing", "resetting"):
        return Record(step="quarantined", since=now - rules.quarantine_s, reason=record.reason)
    return replace(record, since=min(now, record.since))  # the file can have any number


def reset_together(
    gpu: NvmlGpu, compute: tuple[int, int], links: Iterable[GpuLink], *, groups: bool
) -> tuple[tuple[str, ...], str]:
    """Return the UUIDs of the GPUs to reset together with one, and why not, "" if they can be.

    A GPU before Ampere is reset together with all GPUs that NVLinks connect to it: nvidia-smi -r
    refuses fewer. If this function refuses the reset, it returns that GPU alone.

    Args:
        compute: its CUDA compute capability, (0, 0) if it is unknown.
        groups: whether several GPUs can be reset together.
    """
    if gpu.mig_enabled:
        return (gpu.uuid,), "it is in MIG mode, and a reset would remove its MIG devices"
    if compute == (0, 0) or ON_SWITCHES in gpu.name:
        return (gpu.uuid,), "it is not known which GPUs have to be reset together"
    if compute >= OLDEST_ALONE:
        return (gpu.uuid,), ""
    connected = [set(link.gpus) for link in links if link.nvlinks]
    group = {gpu.uuid}
    while more := {uuid for pair in connected if pair & group for uuid in pair} - group:
        group |= more
    if len(group) > 1 and not groups:
        return (gpu.uuid,), f"{len(group)} GPUs have to be reset together, which is switched off"
    return tuple(sorted(group)), ""


TEXTS: Mapping[Step, str] = {
    "quarantined": "new pods do not get it; it has {quarantine_s:g} s to recover by itself",
    "evicting": "its pods are evicted; they have {evict_s:g} s to end",
    "releasing": "the agent closes it; other processes have {release_s:g} s to close it",
    "resetting": "it is reset",
    "checking": "it has {check_s:g} s to show no error",
    "probation": "pods get it again after the probation",
    "requested": "somebody has to act: ",
    "failed": "the healing begins again after {retry_s:g} s",
}


def plan(health: Health, gpus: tuple[str, ...], refusal: str, rules: Rules) -> Iterator[str]:
    """Yield the steps that the healing of a GPU would take if nothing is in the way."""
    record: Record | None = None
    now, cured = 0.0, replace(health, state="probation")
    while record is None or record.step not in ("probation", "requested", "failed"):
        is_cured = record is not None and record.step == "checking"
        look = Look(
            health=cured if is_cured else health, gpus=gpus, refusal=refusal, users=(),
            holders=(), outcome="",
        )  # fmt: skip
        after = step(record, look, now, rules)
        if after is None or after == record:
            return
        text = TEXTS[after.step].format(**{name: getattr(rules, name) for name in NUMBERS})
        remedy = f"{REMEDIES[after.action]} ({after.reason})" if after.action else ""
        yield f"{after.step}: {text}{remedy}"
        record, now = after, now + rules.quarantine_s + rules.let_go_s


NUMBERS = ("quarantine_s", "evict_s", "release_s", "check_s", "retry_s")
