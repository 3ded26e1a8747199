# SPDX-License-Identifier: Apache-2.0
"""The preflight of GPUs: before a GPU is offered, checks whether it is sound and at full speed.

Each GPU is checked once after a boot, a change of the driver and a reset. A finding withholds the
GPU, or is only a warning (`CHECKS`, and the settings). A GPU with findings is asked again now and
then, but only to end findings: the GPU may be in use then, and a hot GPU is slow for good reason.

A value that NVML does not report is not a finding. Neither is the present speed of the PCIe link
or of the clocks: both are low on an idle GPU. Contract: imported only if it is switched on.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast, get_args

from nvct import typed
from nvct.agent.health.board import GpuLook
from nvct.agent.web.exposition import Family, family
from nvct.errors import UsageError
from nvct.host.faults import REMEDIES, SEVERE, Action, Fault, worst
from nvct.host.nvml.sample_model import GpuPreflight, NvmlPreflight
from nvct.oci.jsontext import Json

Effect = Literal["withhold", "warn", "ignore"]
Values: TypeAlias = Mapping[str, float]

DEFAULT = "default"
AGAIN_S = 30.0  # Until a GPU with findings is asked again
PENDING = "it is not checked yet (preflight)"
SLOWDOWNS = {0x8: "hardware slowdown", 0x40: "too hot", 0x80: "power brake"}
"""nvmlClocksEventReason* of nvml.h that at least halve the clocks. `hardware slowdown` is also set
with each of the others."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a GPU, and what its finding does to the GPU."""

    effect: Effect
    action: Action  # what ends the finding, for a GPU that is withheld
    # returns a finding about the values, as a sentence, "" if there is none
    look: Callable[[Values], str]


def _errors(values: Values) -> str:
    count = values.get("ecc_uncorrected", 0)
    return f"uncorrected memory errors since the start: {count:g}" if count else ""


def _remap_pending(values: Values) -> str:
    pending = values.get("remap_pending") or values.get("retired_pending")
    return "a part of the memory is replaced at the next reset" if pending else ""


def _remap_failed(values: Values) -> str:
    return "a row of the memory cannot be remapped" if values.get("remap_failed") else ""


def _ecc_pending(values: Values) -> str:
    now, then = values.get("ecc"), values.get("ecc_next")
    words = "on" if then else "off"
    is_same = now is None or then is None or now == then
    return "" if is_same else f"ECC is switched {words} at the next reset"


def _pcie_width(values: Values) -> str:
    lanes, most = values.get("pcie_width", 0), values.get("pcie_width_max", 0)
    return f"the PCIe link has {lanes:g} of {most:g} lanes" if 0 < lanes < most else ""


def _pcie_speed(values: Values) -> str:
    slot, gpu = values.get("pcie_gen_slot", 0), values.get("pcie_gen_max", 0)
    return f"the slot is PCIe {slot:g}, the GPU PCIe {gpu:g}" if 0 < slot < gpu else ""


def _nvlinks(values: Values) -> str:
    links, most = values.get("nvlinks"), values.get(MOST_LINKS, 0)
    if links is None or links >= most or values.get("mig"):
        return ""
    return f"{links:g} NVLinks are up, and {most:g} on another GPU of its model"


def _slowdown(values: Values) -> str:
    if values.get("utilization") != 0:
        return ""
    bits = int(values.get("clock_event_reasons", 0))
    found = [text for bit, text in SLOWDOWNS.items() if bits & bit]
    return f"the clocks of the idle GPU are limited: {found[-1]}" if found else ""


def _persistence(values: Values) -> str:
    return "persistence mode is off" if values.get("persistence") == 0 else ""


MOST_LINKS = "nvlinks_most"
"""A value besides NVML's: the most NVLinks of a GPU of the same model in this machine. A GPU
cannot tell how many it should have: bridges may be missing on purpose."""
CHECKS: Mapping[str, Check] = {
    "ecc-errors": Check("withhold", "reset", _errors),
    "remap-pending": Check("withhold", "reset", _remap_pending),
    "remap-failed": Check("withhold", "replace", _remap_failed),
    "pcie-width": Check("withhold", "reset", _pcie_width),
    "nvlinks": Check("withhold", "reset", _nvlinks),
    "slowdown": Check("withhold", "reset", _slowdown),
    "pcie-speed": Check("warn", "reset", _pcie_speed),
    "ecc-pending": Check("warn", "reset", _ecc_pending),
    "persistence": Check("warn", "reset", _persistence),
}


def effects(text: str) -> dict[str, Effect]:
    """Return the effect of each check, given `default` or changes such as `pcie-width=warn`.

    UsageError if there is no such check or effect.
    """
    known = {name: check.effect for name, check in CHECKS.items()}
    for word in (word.strip() for word in text.split(",")):
        name, _, effect = word.partition("=")
        if word in (DEFAULT, ""):
            continue
        if name not in CHECKS or effect not in get_args(Effect):
            raise UsageError(
                f"--health-preflight has no {word!r}",
                hint=f"use none, {DEFAULT}, or CHECK=EFFECT; an EFFECT is one of "
                f"{', '.join(get_args(Effect))}; a CHECK is one of {', '.join(CHECKS)}",
            )
        known[name] = cast("Effect", effect)
    return known


def judge(gpus: Iterable[GpuPreflight]) -> dict[str, dict[str, str]]:
    """Return the findings about each GPU, by UUID: a sentence for each check that found one."""
    links: dict[str, float] = {}
    for gpu in gpus:
        links[gpu.name] = max(links.get(gpu.name, 0), gpu.values.get("nvlinks", 0))
    found = {}
    for gpu in gpus:
        values = {**gpu.values, MOST_LINKS: links[gpu.name]}
        texts = {name: check.look(values) for name, check in CHECKS.items()}
        found[gpu.uuid] = {name: text for name, text in texts.items() if text}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The findings about a GPU that was checked under a version of the driver."""

    driver: str
    findings: dict[str, str] = field(default_factory=dict)


class Preflight:
    """The findings about each GPU of this node since it booted."""

    def __init__(self, effects: Mapping[str, Effect]) -> None:
        self.effects = effects
        self.is_due = self.is_unsaved = False
        """Whether the driver may have been replaced; whether findings were not dumped yet."""
        self._gpus: dict[str, Checked] = {}
        self._again_at = 0.0

    async def look(
        self, looks: Mapping[str, GpuLook], ask: Callable[[], Awaitable[NvmlPreflight]]
    ) -> dict[str, GpuLook]:
        """Return looks at GPUs with the faults of their findings; ask NVML first if it is due."""
        answering = {uuid for uuid, found in looks.items() if found.instances is not None}
        reset = {uuid for uuid in answering if looks[uuid].was_reset}
        has_findings = any(self._of(uuid) for uuid in self._gpus)
        is_time = has_findings and time.monotonic() >= self._again_at
        if self.is_due or reset or is_time or not answering <= self._gpus.keys():
            self.note(await ask(), reset)
        return {
            uuid: replace(found, faults=(*found.faults, fault))
            if (fault := self.fault(uuid))
            else found
            for uuid, found in looks.items()
        }

    def note(self, answer: NvmlPreflight, reset: Collection[str] = ()) -> None:
        """Note NVML's answer; `reset`: the GPUs that were reset since the last one."""
        before = dict(self._gpus)
        for uuid, findings in judge(answer.gpus).items():
            known = self._gpus.get(uuid)
            if known and known.driver == answer.driver_version and uuid not in reset:
                findings = {name: findings[name] for name in known.findings if name in findings}
            self._gpus[uuid] = Checked(driver=answer.driver_version, findings=findings)
        self.is_due, self._again_at = False, time.monotonic() + AGAIN_S
        self.is_unsaved = self.is_unsaved or self._gpus != before

    def forget(self) -> None:
        """Check each GPU as after a boot."""
        self._gpus.clear()

    def fault(self, uuid: str) -> Fault | None:
        """Return the fault that the findings about a GPU add up to, None if it has none."""
        found = self._of(uuid)
        reason = f"preflight: {', '.join(text for _, _, text in found)}"
        actions: list[Action] = [
            CHECKS[name].action if effect == "withhold" else "watch" for name, effect, _ in found
        ]
        return worst(Fault(action=action, reason=reason) for action in actions)

    def problem(self, uuid: str) -> str:
        """Return why a GPU is withheld, "" if it is not."""
        if uuid not in self._gpus:
            return PENDING
        fault = self.fault(uuid)
        if fault is None or fault.action not in SEVERE:
            return ""
        return f"{fault.reason}; {REMEDIES[fault.action]}"

    def describe(self) -> dict[str, Json]:
        """Return the findings for /status: by UUID, the effect and a sentence of each."""
        return {
            uuid: {name: {"effect": effect, "text": text} for name, effect, text in found}
            for uuid in self._gpus
            if (found := self._of(uuid))
        }

    def metrics(self) -> Iterator[Family]:
        """Yield the findings."""
        rows = [
            (1, {"UUID": uuid, "check": name, "effect": effect})
            for uuid in self._gpus
            for name, effect, _ in self._of(uuid)
        ]
        yield family("nvct_health_preflight", "A finding of the preflight about a GPU.", rows)

    def dump(self) -> Json:
        """Return what `load` takes."""
        self.is_unsaved = False
        return {uuid: typed.dump(gpu) for uuid, gpu in self._gpus.items()}

    def load(self, value: object) -> None:
        """Take over what an earlier process has noted; MalformedError for other data."""
        self._gpus = typed.load(dict[str, Checked], value)

    def _of(self, uuid: str) -> list[tuple[str, Effect, str]]:
        known = self._gpus.get(uuid)
        return [
            (name, effect, text)
            for name, text in (known.findings if known else {}).items()
            if (effect := self.effects.get(name, "ignore")) != "ignore"
        ]
