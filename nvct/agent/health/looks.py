# SPDX-License-Identifier: Apache-2.0
"""What NVML's values say about a GPU: its faults, and whether it was reset.

Contract: pure functions. Source of the numbers: nvml.h.
"""

from __future__ import annotations

from nvct.agent.health.board import GpuLook
from nvct.agent.health.machine import Fault, Look

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nvct.host.nvml.condition_model import GpuCondition
    from nvct.oci.jsontext import Json

GPU_IS_LOST, RESET_REQUIRED = 15, 16
"""NVML_ERROR_*."""
RECOVERY = {
    1: Fault(action="reset", reason="the driver asks for a reset of the GPU"),
    2: Fault(action="reboot", reason="the driver asks for a reboot"),
    3: Fault(action="watch", reason="the driver asks to end peer-to-peer traffic (drain P2P)"),
    4: Fault(action="reset", reason="the driver asks to drain the GPU and to reset it"),
}
"""NVML_GPU_RECOVERY_ACTION_*; 0 is none."""
RESET_BY_RESET = {"ecc_corrected": 1.0, "ecc_uncorrected": 1.0, "energy": 0.5}
"""Counters that only increase until the GPU is reset or the driver loaded again, and the part of
the last value that a value below tells of that."""


def look(gpu: GpuCondition, before: Mapping[str, float], *, counts: bool = True) -> GpuLook:
    """Return what a look at a GPU has found.

    Args:
        gpu: the answer of NVML.
        before: values of the look before, {} if there was none.
        counts: whether faults count; False where all checks are switched off.
    """
    found = Look(
        faults=tuple(_faults(gpu)) if counts else (),
        asks=gpu.values.get("recovery_action", 0) != 0 or gpu.code == RESET_REQUIRED,
        was_reset=any(
            name in gpu.values and gpu.values[name] < before.get(name, 0) * part
            for name, part in RESET_BY_RESET.items()
        ),
    )
    instances = {(mig.gi, mig.ci): mig.uuid for mig in gpu.mig}
    return GpuLook(look=found, instances=None if gpu.error else instances)


def hangs(reason: str) -> GpuLook:
    """Return the look at a GPU that does not answer."""
    return GpuLook(look=Look(faults=(Fault(action="reset", reason=hanging(reason)),)))


def hanging(reason: str) -> str:
    """Return the sentence about a GPU that does not answer."""
    return f"the GPU does not answer: {reason}"


def known_values(document: Json) -> dict[str, dict[str, float]]:
    """Return the values of GPUs that a former process has written; {} if they are malformed."""
    if not isinstance(document, dict):
        return {}
    return {
        uuid: {
            name: value
            for name, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }
        for uuid, values in document.items()
        if isinstance(values, dict)
    }


def _faults(gpu: GpuCondition) -> Iterator[Fault]:
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
