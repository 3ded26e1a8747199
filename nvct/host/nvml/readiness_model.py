# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about what a GPU waits for before it can be used, as values."""

from __future__ import annotations

from dataclasses import dataclass

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)
"""States of the NVLink fabric: nvml.h, NVML_GPU_FABRIC_STATE_*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadiness:
    """A GPU.

    Attributes:
        bus_id: its PCI address as NVML writes it.
        persistence: whether the driver keeps it initialized; None if NVML does not report it.
        fabric: the state of its NVLink fabric, None if NVML does not report it.
        fabric_status: the nvmlReturn_t of a completed fabric, 0 if it succeeded.
    """

    bus_id: str
    persistence: bool | None = None
    fabric: int | None = None
    fabric_status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReadiness:
    """All GPUs of a machine that answer."""

    gpus: tuple[GpuReadiness, ...] = ()
