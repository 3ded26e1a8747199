# SPDX-License-Identifier: Apache-2.0
"""Verb samples: the values of all GPUs and MIG devices for metrics. Runs in the worker.

A GPU that hangs is left out, see `each_gpu`. Contract: a value that NVML refuses is an error of
that value only.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from nvct.errors import NvmlError
from nvct.host.nvml import each_gpu, events
from nvct.host.nvml.calls import Calls, Handle, Reading, mig_devices, optional, reason, string
from nvct.host.nvml.report import mig_profile
from nvct.host.nvml.sample_model import GpuSample, MigSample, NvmlSamples, ProcessSample, XidCount

LIMIT_S = 2.0  # A GPU that has not answered this long after another one is left out
ALL_LINKS = 0xFFFFFFFF
CLOCKS = {"sm_clock": 1, "memory_clock": 2, "video_clock": 3}  # by name, nvmlClockType_t
THRESHOLDS = {
    "shutdown_temperature": 0,
    "slowdown_temperature": 1,
    "max_memory_temperature": 2,
    "max_temperature": 3,
}
"""By name, nvmlTemperatureThresholds_t."""
OF_BOARD = {
    "power": "nvmlDeviceGetPowerUsage",
    "performance_state": "nvmlDeviceGetPerformanceState",
    "fan_speed": "nvmlDeviceGetFanSpeed",
    "energy": "nvmlDeviceGetTotalEnergyConsumption",
    "clock_event_reasons": "nvmlDeviceGetCurrentClocksThrottleReasons",  # the name up to 525
    "power_limit": "nvmlDeviceGetPowerManagementLimit",
    "power_limit_default": "nvmlDeviceGetPowerManagementDefaultLimit",
    "power_limit_enforced": "nvmlDeviceGetEnforcedPowerLimit",
}
"""By name, the function of NVML that returns the value."""
PCIE_TX, PCIE_RX = 0, 1
FIELDS = {
    "ecc_corrected": "ECC_SBE_VOL_TOTAL",
    "ecc_uncorrected": "ECC_DBE_VOL_TOTAL",
    "ecc_corrected_total": "ECC_SBE_AGG_TOTAL",
    "ecc_uncorrected_total": "ECC_DBE_AGG_TOTAL",
    "retired_sbe": "RETIRED_SBE",
    "retired_dbe": "RETIRED_DBE",
    "retired_pending": "RETIRED_PENDING",
    "remapped_corrected": "REMAPPED_COR",
    "remapped_uncorrected": "REMAPPED_UNC",
    "remap_pending": "REMAPPED_PENDING",
    "remap_failed": "REMAPPED_FAILURE",
    "memory_temperature": "MEMORY_TEMP",
    "pcie_replays": "PCIE_REPLAY_COUNTER",
    "nvlink_tx": "NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx": "NVLINK_THROUGHPUT_DATA_RX",
    "nvlink_crc_flit": "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "nvlink_crc_data": "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "nvlink_replays": "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "nvlink_recoveries": "NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "violation_power": "PERF_POLICY_POWER",
    "violation_thermal": "PERF_POLICY_THERMAL",
    "violation_sync_boost": "PERF_POLICY_SYNC_BOOST",
    "violation_board_limit": "PERF_POLICY_BOARD_LIMIT",
    "violation_low_utilization": "PERF_POLICY_LOW_UTILIZATION",
    "violation_reliability": "PERF_POLICY_RELIABILITY",
    "power_instant": "POWER_INSTANT",
    "recovery_action": "GET_GPU_RECOVERY_ACTION",
}
"""Values that one call of nvmlDeviceGetFieldValues gives: by name, its NVML_FI_DEV_*."""
UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t, by nvmlValueType_t."""


def samples(nvml: Calls) -> NvmlSamples:
    """Return the values of all GPUs now; `unanswered` has the GPUs without an answer."""
    started = _watch_start(nvml)
    answers = each_gpu.ask(nvml, _gpu, LIMIT_S, at_once=True)
    missing = sorted((answers.refused | answers.unanswered).items())
    return NvmlSamples(
        driver_version=string(optional(nvml, nvml.nvmlSystemGetDriverVersion) or ""),
        nvml_version=string(optional(nvml, nvml.nvmlSystemGetNVMLVersion) or ""),
        watch_start=started,
        gpus=tuple(answers.values.values()),
        unanswered={str(index): why for index, why in missing},
    )


def _watch_start(nvml: Calls) -> float:
    """Return when the watch for XIDs started, 0 if there is none."""
    try:
        return events.current(nvml).started
    except (NvmlError, nvml.NVMLError):
        return 0.0


def _gpu(nvml: Calls, index: int) -> GpuSample:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = string(nvml.nvmlDeviceGetUUID(handle))
    reading = Reading(nvml)
    _read_board(reading, handle)
    read_fields(reading, handle, FIELDS)
    _read_memory(reading, handle)
    has_gpm = read_gpm(reading, uuid, handle)
    if has_gpm:
        reading.refuse(("pcie_tx", "pcie_rx"), "GPM reports them")
    else:  # each call takes 20 ms
        reading.number("pcie_tx", "nvmlDeviceGetPcieThroughput", handle, PCIE_TX)
        reading.number("pcie_rx", "nvmlDeviceGetPcieThroughput", handle, PCIE_RX)
    minor = optional(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle))
    return GpuSample(
        index=index,
        minor=-1 if minor is None else int(minor),
        uuid=uuid,
        bus_id=string(optional(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId) or ""),
        name=string(nvml.nvmlDeviceGetName(handle)),
        vbios=string(optional(nvml, lambda: nvml.nvmlDeviceGetVbiosVersion(handle)) or ""),
        serial=string(optional(nvml, lambda: nvml.nvmlDeviceGetSerial(handle)) or ""),
        brand=str(optional(nvml, lambda: nvml.nvmlDeviceGetBrand(handle)) or ""),
        values=reading.values,
        errors=reading.errors,
        mig=tuple(mig_devices(nvml, handle, partial(_mig_device, nvml, handle, uuid))),
        processes=_processes(nvml, handle),
        xids=_xids(uuid),
    )


def _read_board(reading: Reading, handle: Handle) -> None:
    nvml, number = reading.nvml, reading.number
    for name, kind in CLOCKS.items():
        number(name, "nvmlDeviceGetClockInfo", handle, kind)
        number(f"max_{name}", "nvmlDeviceGetMaxClockInfo", handle, kind)
    for name, kind in THRESHOLDS.items():
        number(name, "nvmlDeviceGetTemperatureThreshold", handle, kind)
    number("temperature", "nvmlDeviceGetTemperature", handle, 0)
    for name, function in OF_BOARD.items():
        number(name, function, handle)
    number("gpu_count", "nvmlDeviceGetCount")
    number("cuda_driver", "nvmlSystemGetCudaDriverVersion")

    def rates() -> tuple[int, int]:
        used = nvml.nvmlDeviceGetUtilizationRates(handle)
        return int(used.gpu), int(used.memory)

    reading.read(("gpu_utilization", "memory_utilization"), rates)
    reading.read(
        ("power_limit_min", "power_limit_max"),
        lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle),
    )
    encoder, decoder = ("encoder_utilization",), ("decoder_utilization",)
    reading.read(encoder, lambda: nvml.nvmlDeviceGetEncoderUtilization(handle)[:1])
    reading.read(decoder, lambda: nvml.nvmlDeviceGetDecoderUtilization(handle)[:1])


def read_fields(reading: Reading, handle: Handle, wanted: Mapping[str, str]) -> None:
    """Add the values of some of FIELDS, by one call."""
    nvml = reading.nvml
    ids = {}
    for name, field in wanted.items():
        number = getattr(nvml.module, f"NVML_FI_DEV_{field}", None)
        if number is None:
            reading.refuse((name,), "nvidia-ml-py is too old")
        else:
            ids[name] = (number, ALL_LINKS) if "THROUGHPUT" in field else number
    try:
        fields = nvml.nvmlDeviceGetFieldValues(handle, list(ids.values()))
    except nvml.NVMLError as error:
        reading.refuse(tuple(ids), reason(error))
        return
    for name, field in zip(ids, fields, strict=True):
        if field.nvmlReturn != nvml.NVML_SUCCESS:
            reading.refuse((name,), reason(nvml.NVMLError(field.nvmlReturn)))
        else:
            reading.add(name, getattr(field.value, UNION[field.valueType]))


def _read_memory(reading: Reading, handle: Handle) -> None:
    names = ("memory_total", "memory_free", "memory_used", "memory_reserved")
    nvml = reading.nvml

    def version_2() -> tuple[int, ...]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.module.nvmlMemory_v2)
        return int(info.total), int(info.free), int(info.used), int(info.reserved)

    def version_1() -> tuple[int, ...]:
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
        return int(info.total), int(info.free), int(info.used)

    reading.read(names, version_2)
    if "memory_total" in reading.errors:  # a driver before 510 has version 1 only
        reading.read(names[:3], version_1)
        for name in set(names) & set(reading.values):
            del reading.errors[name]


def _mig_device(nvml: Calls, parent: Handle, uuid: str, handle: Handle) -> MigSample:
    gi = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
    reading = Reading(nvml)
    _read_memory(reading, handle)
    read_gpm(reading, uuid, parent, gi)
    return MigSample(
        uuid=string(nvml.nvmlDeviceGetUUID(handle)),
        gi=gi,
        ci=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
        profile=mig_profile(nvml, handle),
        values=reading.values,
        errors=reading.errors,
    )


def _processes(nvml: Calls, handle: Handle) -> tuple[ProcessSample, ...]:
    """Return the processes of CUDA and of graphics; none where NVML does not report them."""
    used = optional(nvml, lambda: nvml.nvmlDeviceGetProcessUtilization(handle, 0)) or ()
    percent = {int(sample.pid): int(sample.smUtil) for sample in used}
    by_pid = {}
    for computes, ask in (
        (False, lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
        (True, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    ):
        for process in optional(nvml, ask) or ():
            gi, ci = (
                events.instance_id(getattr(process, name, events.WHOLE_GPU))
                for name in ("gpuInstanceId", "computeInstanceId")
            )
            memory = process.usedGpuMemory
            by_pid[process.pid, gi, ci] = ProcessSample(
                pid=int(process.pid),
                memory=None if memory is None else int(memory),
                gi=gi,
                ci=ci,
                sm=percent.get(int(process.pid)),
                computes=computes,
            )
    return tuple(by_pid.values())


def _xids(uuid: str) -> tuple[XidCount, ...]:
    totals = events.totals(uuid)
    return tuple(
        XidCount(xid=xid, count=count, at=at, gi=gi, ci=ci)
        for (xid, gi, ci), (count, at) in sorted(totals.items())
    )


# Performance metrics (GPM): GPUs have them since Hopper. NVML computes them from two samples; here
# from a new one and the last one of the same device.

MIB = 2**20
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
_gpm_samples: dict[tuple[str, int], Any] = {}
"""The last sample, by GPU UUID and id of the GPU instance. It needs no lock: only one thread at a
time asks a device."""


def read_gpm(reading: Reading, uuid: str, handle: Handle, gi: int = -1) -> bool:
    """Add the metrics of a GPU, or of a GPU instance; return whether the GPU has any."""
    nvml = reading.nvml
    support = optional(nvml, lambda: nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    if not support:
        reading.refuse(tuple(METRICS), "GPUs before Hopper need DCGM's profiling module")
        return False
    sample = None
    try:
        sample = nvml.nvmlGpmSampleAlloc()
        if gi == -1:
            nvml.nvmlGpmSampleGet(handle, sample)
        else:
            nvml.nvmlGpmMigSampleGet(handle, gi, sample)
    except nvml.NVMLError as error:
        reading.refuse(tuple(METRICS), reason(error))
        _free(nvml, sample)
        return True
    before = _gpm_samples.get((uuid, gi))
    _gpm_samples[uuid, gi] = sample
    if before is None:
        reading.refuse(tuple(METRICS), "two samples are needed, and this is the first")
        return True
    try:
        _read_metrics(reading, before, sample)
    except nvml.NVMLError as error:
        reading.refuse(tuple(METRICS), reason(error))
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
            reading.add(name, float(slot.value) * (MIB if name.startswith("gpm_") else 1))
        else:
            reading.refuse((name,), reason(nvml.NVMLError(slot.nvmlReturn)))


def _free(nvml: Calls, sample: object) -> None:
    if sample is not None:
        optional(nvml, lambda: nvml.nvmlGpmSampleFree(sample))
