# SPDX-License-Identifier: Apache-2.0
"""GPU performance metrics (GPM), for the verb `samples`: GPUs have them since Hopper.

NVML gives the metrics between two samples; here, those since the last question about a device.
"""

from __future__ import annotations

from typing import Any

from nvct.host.nvml.calls import Calls, Handle, Reading, optional, reason

METRICS = {
    "graphics_active": 1,
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
    "gpm_pcie_tx": 20,
    "gpm_pcie_rx": 21,
    "gpm_nvlink_rx": 60,
    "gpm_nvlink_tx": 61,
}
"""By name, nvmlGpmMetricId_t."""
MIB = 2**20
UNITS = {name: MIB for name in METRICS if name.startswith("gpm_")}
WHOLE_GPU = -1
NAMES = tuple(METRICS)
_previous: dict[tuple[str, int], Any] = {}
"""The last sample by the GPU's UUID and the id of the GPU instance. The worker's memory; a device
is asked by one thread at a time."""


def read(reading: Reading, uuid: str, handle: Handle, gi: int = WHOLE_GPU) -> bool:
    """Add the metrics of a GPU, or of a GPU instance; return whether the GPU has any."""
    nvml = reading.nvml
    support = optional(nvml, lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    if not support:
        reading.refuse(NAMES, "GPUs before Hopper need DCGM's profiling module")
        return False
    sample = None
    try:
        sample = nvml.nvmlGpmSampleAlloc()
        if gi == WHOLE_GPU:
            nvml.nvmlGpmSampleGet(handle, sample)
        else:
            nvml.nvmlGpmMigSampleGet(handle, gi, sample)
    except nvml.NVMLError as error:
        reading.refuse(NAMES, reason(error))
        _free(nvml, sample)
        return True
    before = _previous.get((uuid, gi))
    _previous[uuid, gi] = sample
    if before is None:
        reading.refuse(NAMES, "two samples are needed, and this is the first")
        return True
    try:
        _read_metrics(reading, before, sample)
    except nvml.NVMLError as error:
        reading.refuse(NAMES, reason(error))
    finally:
        _free(nvml, before)
    return True


def _read_metrics(reading: Reading, before: object, after: object) -> None:
    nvml = reading.nvml
    question = nvml.c_nvmlGpmMetricsGet_t()
    question.version = nvml.NVML_GPM_METRICS_GET_VERSION
    question.numMetrics = len(METRICS)
    question.sample1, question.sample2 = before, after
    for slot, number in zip(question.metrics, METRICS.values(), strict=False):
        slot.metricId = number
    nvml.nvmlGpmMetricsGet(question)
    for slot, name in zip(question.metrics, METRICS, strict=False):
        if slot.nvmlReturn == nvml.NVML_SUCCESS:
            reading.add(name, float(slot.value) * UNITS.get(name, 1))
        else:
            reading.refuse((name,), reason(nvml.NVMLError(slot.nvmlReturn)))


def _free(nvml: Calls, sample: object) -> None:
    if sample is not None:
        optional(nvml, lambda: nvml.nvmlGpmSampleFree(sample))
