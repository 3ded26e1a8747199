# SPDX-License-Identifier: Apache-2.0
"""What NVML's values say about a GPU: its faults, and whether it was reset.

Contract: pure functions. Source of the numbers: nvml.h.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvct.agent.health.board import GpuLook
from nvct.agent.health.machine import Look
from nvct.host import faults
from nvct.host.faults import RESET_REQUIRED, Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.sample_model import GpuCondition  # asked for after the first list
    from nvct.oci.jsontext import Json

RESET_BY_RESET = {"ecc_corrected": 1.0, "ecc_uncorrected": 1.0, "energy": 0.5}
"""Counters that only increase until the GPU is reset or the driver loaded again, and the part of
the last value that a value below tells of that."""


def look(gpu: GpuCondition, before: Mapping[str, float], *, counts: bool = True) -> GpuLook:
    """Return what a look at a GPU has found.

    Args:
        before: values of the look before, {} if there was none.
        counts: whether faults count; False where all checks are switched off.
    """
    found = Look(
        faults=tuple(faults.of_condition(gpu)) if counts else (),
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
    return GpuLook(look=Look(faults=(Fault(action="reset", reason=faults.hanging(reason)),)))


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
