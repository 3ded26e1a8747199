# SPDX-License-Identifier: Apache-2.0
"""Verb conditions: what tells whether each GPU is well. Runs in the worker.

A GPU that hangs is left out (`each_gpu`). One that NVML refuses is named with NVML's error: a GPU
that fell off the bus does not tell its UUID any more, so the last one at its index is kept.
"""

from __future__ import annotations

from functools import partial

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, mig_devices, reason, string
from nvct.host.nvml.sample_model import CONDITION_VALUES, GpuCondition, MigInstance, NvmlConditions
from nvct.host.nvml.samples import FIELDS, Reading, read_fields

HEALTH_FIELDS = {name: FIELDS[name] for name in CONDITION_VALUES if name in FIELDS}
_uuids: dict[int, str] = {}
"""UUIDs of the GPUs that have answered, by index."""


def conditions(nvml: Calls) -> NvmlConditions:
    """Return the condition of each GPU."""
    answers = each_gpu.ask(nvml, _gpu)
    found = answers.values
    well = {found[index].uuid for index in found if not found[index].error}
    gpus = [gpu for gpu in found.values() if gpu.uuid and (not gpu.error or gpu.uuid not in well)]
    return NvmlConditions(gpus=tuple(gpus))


def _gpu(nvml: Calls, index: int) -> GpuCondition:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _uuids[index] = string(nvml.nvmlDeviceGetUUID(handle))
        # A GPU that is lost may still tell its UUID.
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        why = f"{nvml.last}: {reason(error)}"
        return GpuCondition(uuid=_uuids.get(index, ""), error=why, code=int(error.value))
    reading = Reading(nvml)
    read_fields(reading, handle, HEALTH_FIELDS)
    reading.read(("energy",), lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle),))
    return GpuCondition(
        uuid=uuid,
        values=reading.values,
        mig=tuple(mig_devices(nvml, handle, partial(_instance, nvml))),
    )


def _instance(nvml: Calls, handle: Handle) -> MigInstance:
    return MigInstance(
        uuid=string(nvml.nvmlDeviceGetUUID(handle)),
        gi=int(nvml.nvmlDeviceGetGpuInstanceId(handle)),
        ci=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
    )
