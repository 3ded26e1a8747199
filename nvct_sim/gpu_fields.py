# SPDX-License-Identifier: Apache-2.0
"""The fields of a simulated GPU that may change while it runs, and their values as text.

The names and units are those of the state file (native/nvml/metrics.c). A field that is not set
has the value of an idle GPU, or one that follows from `util`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from nvct.errors import UsageError

BOARD = (
    "temp", "power", "util", "used", "fan", "ecc", "eccerrors", "persistence", "addressing",
    "board",
)  # fmt: skip
COUNTERS = (
    "ecc_corrected", "ecc_uncorrected", "ecc_corrected_total", "ecc_uncorrected_total",
    "remapped_corrected", "remapped_uncorrected", "retired_sbe", "retired_dbe",
    "pcie_replays", "nvlink_tx", "nvlink_rx", "nvlink_crc_flit", "nvlink_crc_data",
    "nvlink_replays", "nvlink_recoveries", "violation_power", "violation_thermal", "energy",
)  # fmt: skip
MEASURED = ("power_usage", "memtemp", "smclock", "memclock", "pcie_tx", "pcie_rx")
PERCENTS = (
    "util", "memutil", "encutil", "decutil", "gr_active", "sm_active", "sm_occupancy",
    "tensor_active", "dram_active", "fp64_active", "fp32_active", "fp16_active",
)  # fmt: skip
FLAGS = (
    "remap_pending", "remap_failed", "retired_pending", "ecc", "persistence", "migreset",
)  # fmt: skip
RECOVERY = ("none", "reset", "reboot", "drain-p2p", "drain-and-reset")
"""In the order of NVML's numbers (nvml.h, NVML_GPU_RECOVERY_ACTION_*)."""
THROTTLE = MappingProxyType({
    "none": 0, "idle": 0x1, "application-clocks": 0x2, "power-cap": 0x4, "hw-slowdown": 0x8,
    "sync-boost": 0x10, "sw-thermal": 0x20, "hw-thermal": 0x40, "power-brake": 0x80,
    "display-clocks": 0x100,
})  # fmt: skip
"""nvml.h, nvmlClocksEventReason*."""
NUMBERS = tuple(dict.fromkeys((*BOARD, *COUNTERS, *MEASURED, *PERCENTS, *FLAGS)))
NAMES = (*NUMBERS, "throttle", "recovery", "hang")
ENDED_BY_RESET = (
    "ecc_corrected", "ecc_uncorrected", "remap_pending", "retired_pending", "recovery", "hang",
)  # fmt: skip
"""Fields that a reset of the GPU sets back."""
LIMIT = 1 << 63
US = 1_000_000
PERIOD_US = 1_000_000 * US
"""A GPU whose power was never changed uses energy since the last multiple of this time."""


def value(name: str, text: str) -> str:
    """Return a field's value as the state has it.

    Raises:
        UsageError: the text is no value for this field.
    """
    if name == "recovery":
        if text not in RECOVERY:
            raise UsageError(f"{text!r} is no recovery", hint=f"one of {', '.join(RECOVERY)}")
        return str(RECOVERY.index(text))
    if name == "throttle":
        return str(_throttle(text))
    if name in (*NUMBERS, "hang") and not (text.isascii() and text.isdecimal()):
        raise UsageError(f"{text!r} is no number for {name}")
    if name == "hang":
        return str(int(time.time() * 1000) + 1000 * int(text))
    limit = 100 if name in PERCENTS else 1 if name in FLAGS else LIMIT
    if name in NUMBERS and int(text) > limit:
        raise UsageError(f"{name}={text} is too much", hint=f"{limit} at most")
    return text


def power_mw(fields: Mapping[str, str]) -> int:
    """Return the milliwatts that a GPU draws, as the simulated NVML does (native/nvml/power.c)."""
    limit, load = int(fields.get("power", 0)), int(fields.get("util", 0))
    return int(fields.get("power_usage", limit // 10 + limit // 100 * load // 100 * 90))


def energy(fields: Mapping[str, str], now_s: float) -> dict[str, str]:
    """Return the fields of the energy that a GPU has used until now, in millijoules."""
    now_us = int(now_s * US)
    since = int(fields.get("energy_at", now_us // PERIOD_US * PERIOD_US))
    used = int(fields.get("energy", 0)) + (now_us - since) // 1000 * power_mw(fields) // 1000
    return {"energy": str(used), "energy_at": str(now_us)}


def _throttle(text: str) -> int:
    bits = 0
    for word in text.split("+"):
        if word not in THROTTLE:
            raise UsageError(
                f"{word!r} is no reason that limits clocks",
                hint=f"one or more with + of {', '.join(THROTTLE)}",
            )
        bits |= THROTTLE[word]
    return bits
