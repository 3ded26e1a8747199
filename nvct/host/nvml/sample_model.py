# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about the state of GPUs, as values: samples, readiness, health, preflight.

The names of values are in `UNITS`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

UNITS = {
    "MHz": (
        "sm_clock", "memory_clock", "video_clock", "max_sm_clock", "max_memory_clock",
        "max_video_clock",
    ),
    "degrees Celsius": (
        "temperature", "memory_temperature", "slowdown_temperature", "shutdown_temperature",
        "max_temperature", "max_memory_temperature",
    ),
    "0 is the fastest, 32 unknown": ("performance_state",),
    "per cent": (
        "fan_speed", "gpu_utilization", "memory_utilization", "encoder_utilization",
        "decoder_utilization",
    ),
    "milliwatts": (
        "power", "power_instant", "power_limit", "power_limit_min", "power_limit_max",
        "power_limit_default", "power_limit_enforced",
    ),
    "GPUs of the machine": ("gpu_count",),
    "the driver's CUDA version, 12040 is 12.4": ("cuda_driver",),
    "millijoules since the driver was loaded": ("energy",),
    "bits, nvml.h nvmlClocksEventReason*": ("clock_event_reasons",),
    "bytes": ("memory_total", "memory_free", "memory_used", "memory_reserved"),
    "retries": ("pcie_replays",),
    "KB/s, before Hopper": ("pcie_tx", "pcie_rx"),
    "errors since the driver was loaded": ("ecc_corrected", "ecc_uncorrected"),
    "errors": (
        "ecc_corrected_total", "ecc_uncorrected_total", "nvlink_crc_flit", "nvlink_crc_data",
        "nvlink_replays", "nvlink_recoveries",
    ),
    "pages": ("retired_sbe", "retired_dbe"),
    "0 or 1": ("retired_pending", "remap_pending", "remap_failed"),
    "rows": ("remapped_corrected", "remapped_uncorrected"),
    "KiB, all links": ("nvlink_tx", "nvlink_rx"),
    "nanoseconds": (
        "violation_power", "violation_thermal", "violation_sync_boost", "violation_board_limit",
        "violation_low_utilization", "violation_reliability",
    ),
    "nvml.h NVML_GPU_RECOVERY_ACTION_*": ("recovery_action",),
    "per cent, since Hopper": (
        "graphics_active", "sm_active", "sm_occupancy", "tensor_active", "dram_active",
        "fp64_active", "fp32_active", "fp16_active",
    ),
    "bytes/s, since Hopper": ("gpm_pcie_tx", "gpm_pcie_rx", "gpm_nvlink_tx", "gpm_nvlink_rx"),
}  # fmt: skip
"""All values of GPUs and MIG devices, by their unit."""
VALUES = {name: unit for unit, names in UNITS.items() for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """A process that uses a GPU."""

    pid: int  # in the host's PID namespace, the driver's
    memory: int | None  # bytes of the GPU's memory; None where NVML does not report it
    # gi, ci: the ids of its MIG instances, -1 if there are none
    gi: int = -1
    ci: int = -1
    sm: int | None = None  # per cent of the GPU's time; None if not reported, as in MIG mode
    computes: bool = True  # whether it has a CUDA context; False for a display server


@dataclass(frozen=True, slots=True, kw_only=True)
class XidCount:
    """How often a GPU or MIG instance had an XID error since the watch started."""

    xid: int
    count: int
    at: float  # the time of the last one, in seconds since 1970
    # gi, ci: the ids of the MIG instances, -1 if the error is of the whole GPU
    gi: int = -1
    ci: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSample:
    """The values of a MIG device at one time."""

    uuid: str
    gi: int
    ci: int
    profile: str  # such as 1g.10gb; "" where NVML does not report it
    values: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a value with an unknown name, by ValueError."""
        _check(self.values, VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """The values of a GPU at one time."""

    index: int
    minor: int  # of its device node; -1 if it has none
    uuid: str
    bus_id: str  # its PCI address as NVML writes it, 00000000:18:00.0
    name: str
    # vbios, serial, brand: "" where NVML does not report it
    vbios: str = ""
    serial: str = ""
    brand: str = ""
    values: dict[str, float] = field(default_factory=dict)  # by the names in UNITS
    errors: dict[str, str] = field(default_factory=dict)  # why a value is missing, by its name
    mig: tuple[MigSample, ...] = ()  # its MIG devices; empty unless it is in MIG mode
    processes: tuple[ProcessSample, ...] = ()
    xids: tuple[XidCount, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a value with an unknown name, by ValueError."""
        _check(self.values, VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSamples:
    """All GPUs of a machine at one time."""

    # driver_version, nvml_version: "" where NVML does not report it
    driver_version: str = ""
    nvml_version: str = ""
    # when the watch for XIDs started, in seconds since 1970, with all counts at 0; 0.0 without one
    watch_start: float = 0.0
    gpus: tuple[GpuSample, ...] = ()  # those that answered, by index
    unanswered: dict[str, str] = field(default_factory=dict)  # why another is missing, by index


def _check(values: dict[str, float], known: Collection[str]) -> None:
    if unknown := values.keys() - set(known):
        raise ValueError(f"the value {min(unknown)!a} is unknown")


NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
"""States of the NVLink fabric: nvml.h, NVML_GPU_FABRIC_STATE_*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadiness:
    """Whether a GPU can be used: persistence mode, and NVLink fabric."""

    bus_id: str  # its PCI address as NVML writes it
    persistence: bool | None = None  # keeps the driver initialized; None if not reported
    fabric: int | None = None  # the state of its NVLink fabric, None if NVML does not report it
    fabric_status: int = 0  # the nvmlReturn_t of a completed fabric, 0 if it succeeded


CONDITION_VALUES = (
    "ecc_corrected", "ecc_uncorrected", "remap_pending", "remap_failed", "retired_pending",
    "recovery_action", "energy",
)  # fmt: skip
"""The names in VALUES that a GpuCondition can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A MIG device."""

    uuid: str
    gi: int
    ci: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCondition:
    """The values that show the health of a GPU."""

    uuid: str  # also of a GPU that is lost, if it answered before; otherwise ""
    error: str = ""  # why NVML refuses the GPU; "" if it does not
    code: int = 0  # the number of that error, nvml.h NVML_ERROR_*; 0 if there is none
    values: dict[str, float] = field(default_factory=dict)  # by CONDITION_VALUES, if reported
    mig: tuple[MigInstance, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a value with an unknown name, by ValueError."""
        _check(self.values, CONDITION_VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlConditions:
    """All GPUs of a machine that have a known UUID and do not hang."""

    gpus: tuple[GpuCondition, ...] = ()


PREFLIGHT_VALUES = (
    "ecc_uncorrected", "remap_pending", "remap_failed", "retired_pending", "ecc", "ecc_next",
    "pcie_width", "pcie_width_max", "pcie_gen_slot", "pcie_gen_max", "nvlinks", "mig",
    "persistence", "utilization", "clock_event_reasons",
)  # fmt: skip
"""The values of a preflight: lanes and generations of PCIe (`pcie_gen_slot` is the highest that
slot and GPU have in common, `pcie_gen_max` the GPU's own); the number of NVLinks that are up;
modes, 0 or 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPreflight:
    """The values that a preflight compares for a GPU."""

    uuid: str
    name: str
    values: dict[str, float] = field(default_factory=dict)  # by PREFLIGHT_VALUES, if reported

    def __post_init__(self) -> None:
        """Refuse a value with an unknown name, by ValueError."""
        _check(self.values, PREFLIGHT_VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlPreflight:
    """All GPUs of a machine that answer."""

    driver_version: str
    gpus: tuple[GpuPreflight, ...] = ()
