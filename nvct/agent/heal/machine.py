# SPDX-License-Identifier: Apache-2.0
"""What is done about one GPU that has failed: a step, and what each look makes of it.

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
"""How far a GPU is healed; each does what the one before does."""
HEALING: tuple[Step, ...] = ("evicting", "releasing", "resetting", "checking")
"""Steps in which this node counts as one that heals."""
LEAST: Mapping[Step, str] = {
    "evicting": "evict", "releasing": "reset", "resetting": "reset", "checking": "reset",
}  # fmt: skip
"""The level that a step needs."""
OLDEST_ALONE = (8, 0)
"""CUDA compute capability of GPUs with NVLink that are reset alone: Ampere (nvidia-smi(1), -r)."""
ON_SWITCHES = "SXM3"
"""In the name of older GPUs whose NVLinks lead to NVSwitches, so that pairs have none: DGX-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The numbers of the state machine, in seconds.

    Attributes:
        quarantine_s: how long a GPU may come back by itself before its pods are evicted.
        evict_s: how long these may take to go.
        let_go_s, release_s: how long a GPU is unused at least before a reset, and how long
            processes may take to close it.
        check_s: how long after a reset the GPU may take to show no error.
        retry_s: after which what had failed begins again.
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
    """Where the healing of a GPU is.

    Attributes:
        reason: what is waited for, what is requested, or what has failed.
        action: that is requested; "" in other steps.
        gpus: UUIDs of those that are reset together, with this one.
        refusal: why they are not reset, "" if they can be.
    """

    step: Step
    since: float
    reason: str = ""
    action: Action | Literal[""] = ""
    gpus: tuple[str, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known of a GPU now; what its step does not need is left out.

    Attributes:
        wait: why the healing may not begin now, "" if it may.
        gpus, refusal: as a record has them; () if that is not known.
        users: what pods have of them, None if that is not known.
        holders: the processes that have them open, same.
        unknown: why what the step needs to know is not known, "" if it is.
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
        return _failed(f"pods have not gone within {rules.evict_s:g} s: {reason}", now)
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
    if look.outcome and look.holders:  # one came meanwhile
        return _failed(f"the GPU is in use: {'; '.join(look.holders)}", now)
    if look.outcome:
        return _requested("reboot", f"{look.health.reason}; no reset: {look.outcome}", now)
    return Record(step="checking", since=now, gpus=record.gpus)


def _checking(record: Record, look: Look, now: float, rules: Rules) -> Record:
    if now - record.since < rules.check_s:
        return replace(record, reason=look.health.reason)
    return _requested("reboot", f"{look.health.reason}; the reset has not helped", now)


def _requesting(record: Record, look: Look, now: float, rules: Rules) -> Record:
    """A GPU that gets worse needs more."""
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
    """Return where a process goes on that finds this record of another one.

    What was not reset begins again, without a wait: what has to be reset together, and what the
    level allows, may have changed. Nobody knows what became of a reset: if it worked, the health
    of the GPU shows it.
    """
    if record.step in ("evicting", "releasing", "resetting"):
        return Record(step="quarantined", since=now - rules.quarantine_s, reason=record.reason)
    return replace(record, since=min(now, record.since))  # a file may say anything


def reset_together(
    gpu: NvmlGpu, compute: tuple[int, int], links: Iterable[GpuLink], *, groups: bool
) -> tuple[tuple[str, ...], str]:
    """Return the GPUs that are reset with one, by UUID, and why they are not, "" if they are.

    GPUs before Ampere are reset with all that NVLinks connect them to (nvidia-smi(1), -r), which
    refuses less than that. Where a reset is refused here, the GPU is alone.

    Args:
        compute: its CUDA compute capability, (0, 0) if it is unknown.
        groups: whether several may be reset.
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
    "quarantined": "pods do not get it; for {quarantine_s:g} s it may come back by itself",
    "evicting": "its pods are evicted; they have {evict_s:g} s to go",
    "releasing": "the agent closes it; other processes have {release_s:g} s to close it",
    "resetting": "it is reset",
    "checking": "it has {check_s:g} s to show no error",
    "probation": "pods get it again after the probation",
    "requested": "somebody has to act: ",
    "failed": "it begins again after {retry_s:g} s",
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
