# SPDX-License-Identifier: Apache-2.0
"""Reads counter files: which metrics there are, their types and help texts.

The format is that of NVIDIA's exporter: a line is `FIELD, TYPE, help`, a comment begins with #.
TYPE label makes a label of a field.

The fields of DCGM, which are names of metrics, stand for values of NVML. Source: dcgm-exporter's
counter files of 2026-05; what a field means is what DCGM 4.6 computes for it
(DcgmCacheManager.cpp), where that differs from its help text. The second name of a field is that
of its version 1 (etc/1.x-compatibility-metrics.csv).
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Literal, TypeAlias, cast

from nvct.errors import DocumentError
from nvct.typed import dataclass

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary", "label"]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
KINDS = ("counter", "gauge", "histogram", "summary", "label")
DEFAULT, OF_VERSION_1 = (
    Path(__file__).with_name(f"{name}.csv")
    for name in ("default-counters", "1.x-compatibility-metrics")
)
BUILT_IN = {
    "/etc/dcgm-exporter/default-counters.csv": DEFAULT,
    "/etc/dcgm-exporter/dcp-metrics-included.csv": DEFAULT,
    "/etc/dcgm-exporter/1.x-compatibility-metrics.csv": OF_VERSION_1,
}
"""What stands for the counter files of NVIDIA's image; the first two name the same metrics."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A line of a counter file.

    Attributes:
        field: the field that it shows, differs from the name for those of version 1.
        reason: why it has no series; "" if it may have some.
    """

    name: str
    kind: Kind
    help: str
    field: str
    reason: str = ""


def read(path: str) -> tuple[tuple[Counter, ...], list[str]]:
    """Return the counters of a file, each metric once, and warnings: lines without effect.

    A field that nvct does not read is no error: it is a counter with a reason.

    Raises:
        DocumentError: the file cannot be read, or a line is malformed; the message has its number.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DocumentError(f"cannot read the counter file {path}: {why}") from error
    counters: dict[str, Counter] = {}
    warnings: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"line {number} of {path}"
        counter = _counter(line, where)
        if counter.name in counters:
            warnings.append(f"{where} has no effect: {counter.name} has a line before it")
        elif counter.reason and path not in map(str, BUILT_IN.values()):
            warnings.append(f"{where}: {counter.name} has no series: {counter.reason}")
        counters.setdefault(counter.name, counter)
    if not counters:
        raise DocumentError(f"{path} has no counters")
    return tuple(counters.values()), warnings


def _counter(line: str, where: str) -> Counter:
    words = [word.strip(" ") for word in next(csv.reader([line], strict=False))]
    if len(words) != 3:
        raise DocumentError(
            f"{where} has {len(words)} parts, not 3", hint="write FIELD, TYPE, help"
        )
    name, kind, help_text = words
    if not NAME.fullmatch(name):
        raise DocumentError(f"{where}: {name!r} is no name of a field", hint="see docs/metrics.md")
    if kind not in KINDS:
        raise DocumentError(f"{where}: unknown type {kind!r}", hint=f"one of {', '.join(KINDS)}")
    field = VERSION_1.get(name, name)
    reason = why_not(field, is_label=kind == "label")
    return Counter(name, cast("Kind", kind), help_text, field, reason)


MIB = 2**20


@dataclass(frozen=True, slots=True)
class Field:
    """How a field follows from a sample.

    Attributes:
        value: a name in `sample_model.VALUES`.
        is_float: whether DCGM has it as a floating-point number, which is written with 6 digits.
    """

    value: str
    divisor: int = 1
    is_float: bool = False


XID = "DCGM_FI_DEV_XID_ERRORS"
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
CLOCK_EVENTS = "DCGM_EXP_CLOCK_EVENTS_COUNT"
NVLINK_TOTAL = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
LINK_RATES = {
    NVLINK_TOTAL: ("nvlink_tx", "nvlink_rx"),
    "DCGM_FI_DEV_NVLINK_TX_BANDWIDTH_TOTAL": ("nvlink_tx",),
    "DCGM_FI_DEV_NVLINK_RX_BANDWIDTH_TOTAL": ("nvlink_rx",),
}
"""Despite TOTAL, DCGM's are rates: 1000 KiB a second since the sample before, as whole numbers."""
LINK_UNIT = 1000
COMPUTED = (XID, XID_COUNT, CLOCK_EVENTS, *LINK_RATES)
"""Metrics that do not follow from one sample alone."""

FIELDS: dict[str, Field] = {
    "DCGM_FI_DEV_SM_CLOCK": Field("sm_clock"),
    "DCGM_FI_DEV_MEM_CLOCK": Field("memory_clock"),
    "DCGM_FI_DEV_VIDEO_CLOCK": Field("video_clock"),
    "DCGM_FI_DEV_MAX_SM_CLOCK": Field("max_sm_clock"),
    "DCGM_FI_DEV_MAX_MEM_CLOCK": Field("max_memory_clock"),
    "DCGM_FI_DEV_MAX_VIDEO_CLOCK": Field("max_video_clock"),
    "DCGM_FI_DEV_PSTATE": Field("performance_state"),
    "DCGM_FI_DEV_FAN_SPEED": Field("fan_speed"),
    "DCGM_FI_DEV_SLOWDOWN_TEMP": Field("slowdown_temperature"),
    "DCGM_FI_DEV_SHUTDOWN_TEMP": Field("shutdown_temperature"),
    "DCGM_FI_DEV_GPU_MAX_OP_TEMP": Field("max_temperature"),
    "DCGM_FI_DEV_MEM_MAX_OP_TEMP": Field("max_memory_temperature"),
    "DCGM_FI_DEV_MEMORY_TEMP": Field("memory_temperature"),
    "DCGM_FI_DEV_GPU_TEMP": Field("temperature"),
    "DCGM_FI_DEV_POWER_USAGE": Field("power", 1000, is_float=True),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": Field("power_instant", 1000, is_float=True),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": Field("power_limit", 1000, is_float=True),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN": Field("power_limit_min", 1000, is_float=True),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX": Field("power_limit_max", 1000, is_float=True),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF": Field("power_limit_default", 1000, is_float=True),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": Field("power_limit_enforced", 1000, is_float=True),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Field("energy"),
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": Field("pcie_tx"),
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": Field("pcie_rx"),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Field("pcie_replays"),
    "DCGM_FI_DEV_GPU_UTIL": Field("gpu_utilization"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Field("memory_utilization"),
    "DCGM_FI_DEV_ENC_UTIL": Field("encoder_utilization"),
    "DCGM_FI_DEV_DEC_UTIL": Field("decoder_utilization"),
    "DCGM_FI_DEV_POWER_VIOLATION": Field("violation_power"),
    "DCGM_FI_DEV_THERMAL_VIOLATION": Field("violation_thermal"),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": Field("violation_sync_boost"),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": Field("violation_board_limit"),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": Field("violation_low_utilization"),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": Field("violation_reliability"),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": Field("clock_event_reasons"),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": Field("clock_event_reasons"),
    "DCGM_FI_DEV_FB_TOTAL": Field("memory_total", MIB),
    "DCGM_FI_DEV_FB_FREE": Field("memory_free", MIB),
    "DCGM_FI_DEV_FB_USED": Field("memory_used", MIB),
    "DCGM_FI_DEV_FB_RESERVED": Field("memory_reserved", MIB),
    "DCGM_FI_DEV_FB_USED_PERCENT": Field("memory_used_ratio", is_float=True),
    "DCGM_FI_DEV_COUNT": Field("gpu_count"),
    "DCGM_FI_CUDA_DRIVER_VERSION": Field("cuda_driver"),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Field("ecc_corrected"),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Field("ecc_uncorrected"),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": Field("ecc_corrected_total"),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": Field("ecc_uncorrected_total"),
    "DCGM_FI_DEV_RETIRED_SBE": Field("retired_sbe"),
    "DCGM_FI_DEV_RETIRED_DBE": Field("retired_dbe"),
    "DCGM_FI_DEV_RETIRED_PENDING": Field("retired_pending"),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": Field("nvlink_crc_flit"),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": Field("nvlink_crc_data"),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": Field("nvlink_replays"),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": Field("nvlink_recoveries"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": Field("remapped_uncorrected"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": Field("remapped_corrected"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": Field("remap_failed"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": Field("remap_pending"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Field("graphics_active", 100, is_float=True),
    "DCGM_FI_PROF_SM_ACTIVE": Field("sm_active", 100, is_float=True),
    "DCGM_FI_PROF_SM_OCCUPANCY": Field("sm_occupancy", 100, is_float=True),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Field("tensor_active", 100, is_float=True),
    "DCGM_FI_PROF_DRAM_ACTIVE": Field("dram_active", 100, is_float=True),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": Field("fp64_active", 100, is_float=True),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": Field("fp32_active", 100, is_float=True),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": Field("fp16_active", 100, is_float=True),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Field("gpm_pcie_tx"),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Field("gpm_pcie_rx"),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": Field("gpm_nvlink_tx"),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": Field("gpm_nvlink_rx"),
}
UNAVAILABLE = {
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "nvct does not read values of vGPUs on their host",
    "DCGM_EXP_GPU_HEALTH_STATUS": "it needs DCGM's health watches",
    "DCGM_EXP_P2P_STATUS": "nvct does not read it",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "nvct reads the sum of all links only",
    "DCGM_FI_DEV_OEM_INFOROM_VER": "nvct does not read it",
    "DCGM_FI_DEV_ECC_INFOROM_VER": "nvct does not read it",
    "DCGM_FI_DEV_POWER_INFOROM_VER": "nvct does not read it",
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": "nvct does not read it",
}
"""Fields without series, and why."""
FAMILIES = {
    "DCGM_FI_DEV_NVSWITCH_": "nvct reads no NVSwitches",
    "DCGM_FI_DEV_CPU_": "nvct reads GPUs only",
    "DCGM_FI_DEV_VGPU_": "nvct does not read values of vGPUs on their host",
    "DCGM_FI_DEV_NVLINK_": "nvct reads the sum of all links only",
    "DCGM_FI_PROF_NVLINK_": "nvct reads the sum of all links only",
    "DCGM_FI_PROF_": "it needs DCGM's profiling module",
    "DCGM_FI_": "nvct does not read it",
}
"""The reason for other fields, by the first prefix that their names have."""
UNKNOWN = "nvct knows no such field"
LABELS = (
    "DCGM_FI_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_DEV_SERIAL",
    "DCGM_FI_DEV_VBIOS_VERSION", "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_UUID",
    "DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_BRAND",
)  # fmt: skip
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "Grid", "GeForce", "Titan",
    "NVIDIA Virtual Applications", "NVIDIA Virtual PC", "NVIDIA Virtual Compute Server",
    "NVIDIA RTX Virtual Workstation", "NVIDIA vGaming", "Quadro RTX", "NVIDIA RTX", "NVIDIA",
    "GeForce RTX", "Titan RTX",
)  # fmt: skip
"""By NVML's number, as DCGM writes it."""
VERSION_1 = {
    "dcgm_sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    "dcgm_memory_clock": "DCGM_FI_DEV_MEM_CLOCK",
    "dcgm_memory_temp": "DCGM_FI_DEV_MEMORY_TEMP",
    "dcgm_gpu_temp": "DCGM_FI_DEV_GPU_TEMP",
    "dcgm_power_usage": "DCGM_FI_DEV_POWER_USAGE",
    "dcgm_total_energy_consumption": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "dcgm_pcie_tx_throughput": "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
    "dcgm_pcie_rx_throughput": "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
    "dcgm_pcie_replay_counter": "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "dcgm_gpu_utilization": "DCGM_FI_DEV_GPU_UTIL",
    "dcgm_mem_copy_utilization": "DCGM_FI_DEV_MEM_COPY_UTIL",
    "dcgm_enc_utilization": "DCGM_FI_DEV_ENC_UTIL",
    "dcgm_dec_utilization": "DCGM_FI_DEV_DEC_UTIL",
    "dcgm_xid_errors": XID,
    "dcgm_power_violation": "DCGM_FI_DEV_POWER_VIOLATION",
    "dcgm_thermal_violation": "DCGM_FI_DEV_THERMAL_VIOLATION",
    "dcgm_sync_boost_violation": "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    "dcgm_board_limit_violation": "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    "dcgm_low_util_violation": "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "dcgm_reliability_violation": "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    "dcgm_fb_free": "DCGM_FI_DEV_FB_FREE",
    "dcgm_fb_used": "DCGM_FI_DEV_FB_USED",
    "dcgm_ecc_sbe_volatile_total": "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "dcgm_ecc_dbe_volatile_total": "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "dcgm_ecc_sbe_aggregate_total": "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "dcgm_ecc_dbe_aggregate_total": "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "dcgm_retired_pages_sbe": "DCGM_FI_DEV_RETIRED_SBE",
    "dcgm_retired_pages_dbe": "DCGM_FI_DEV_RETIRED_DBE",
    "dcgm_retired_pages_pending": "DCGM_FI_DEV_RETIRED_PENDING",
    "dcgm_nvlink_flit_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_data_crc_error_count_total": "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_replay_error_count_total": "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_recovery_error_count_total": "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "dcgm_nvlink_bandwidth_total": NVLINK_TOTAL,
    "dcgm_fi_prof_gr_engine_active": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "dcgm_fi_prof_sm_active": "DCGM_FI_PROF_SM_ACTIVE",
    "dcgm_fi_prof_sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY",
    "dcgm_fi_prof_pipe_tensor_active": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "dcgm_fi_prof_dram_active": "DCGM_FI_PROF_DRAM_ACTIVE",
    "dcgm_fi_prof_pcie_tx_bytes": "DCGM_FI_PROF_PCIE_TX_BYTES",
    "dcgm_fi_prof_pcie_rx_bytes": "DCGM_FI_PROF_PCIE_RX_BYTES",
}
"""Names of version 1."""


def why_not(name: str, *, is_label: bool) -> str:
    """Return why a field has no series, or gives no label; "" if it may."""
    if name in UNAVAILABLE:
        return UNAVAILABLE[name]
    if name in LABELS:
        return "" if is_label else "it is a text: its type is label"
    if name in FIELDS:
        return ""
    if name in COMPUTED:
        return "it follows from several samples, which no label does" if is_label else ""
    for prefix, why in FAMILIES.items():
        if name.startswith(prefix):
            return why
    return UNKNOWN
