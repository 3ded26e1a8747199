# SPDX-License-Identifier: Apache-2.0
"""Errors of GPUs, and what each asks for. Contract: values and pure functions.

Source of the numbers: nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from nvct.host.nvml.condition_model import GpuCondition

Action = Literal["ignore", "application", "watch", "reset", "reboot", "replace"]
ACTIONS: tuple[Action, ...] = ("ignore", "application", "watch", "reset", "reboot", "replace")
"""What an error asks for, by severity. From `reset` on, the device is not offered."""
SEVERE: tuple[Action, ...] = ("reset", "reboot", "replace")
LASTING: tuple[Action, ...] = ("reboot", "replace")
"""The device stays unhealthy until the machine boots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error, and what it asks for."""

    action: Action
    reason: str

    @property
    def severity(self) -> int:
        """Return a number that is larger for a worse error."""
        return ACTIONS.index(self.action)


def worst(faults: Iterable[Fault]) -> Fault | None:
    """Return the worst fault, the first one of equals; None if there is none."""
    return max(faults, key=lambda fault: fault.severity, default=None)


GPU_IS_LOST, RESET_REQUIRED = 15, 16
"""NVML_ERROR_*."""
RECOVERY = {
    1: Fault(action="reset", reason="the driver asks for a reset of the GPU"),
    2: Fault(action="reboot", reason="the driver asks for a reboot"),
    3: Fault(action="watch", reason="the driver asks to end peer-to-peer traffic (drain P2P)"),
    4: Fault(action="reset", reason="the driver asks to drain the GPU and to reset it"),
}
"""NVML_GPU_RECOVERY_ACTION_*; 0 is none."""


def hanging(reason: str) -> str:
    """Return the sentence about a GPU that does not answer."""
    return f"the GPU does not answer: {reason}"


def of_condition(gpu: GpuCondition) -> Iterator[Fault]:
    """Yield the faults that NVML's values of a GPU tell of."""
    if gpu.code == GPU_IS_LOST:
        yield Fault(action="reboot", reason=f"the GPU is lost ({gpu.error})")
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
