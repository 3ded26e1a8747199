# SPDX-License-Identifier: Apache-2.0
"""Verb readiness: persistence mode and NVLink fabric of each GPU. Runs in the worker.

A GPU that hangs, or that NVML refuses, is left out (`each_gpu`).
"""

from __future__ import annotations

import ctypes

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, optional, string
from nvct.host.nvml.readiness_model import GpuReadiness, NvmlReadiness


def readiness(nvml: Calls) -> NvmlReadiness:
    """Return what each GPU reports."""
    found = each_gpu.ask(nvml, _gpu).values
    return NvmlReadiness(gpus=tuple(found[index] for index in sorted(found)))


def _gpu(nvml: Calls, index: int) -> GpuReadiness:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    state, status = _fabric(nvml, handle)
    return GpuReadiness(
        bus_id=string(nvml.nvmlDeviceGetPciInfo(handle).busId),
        persistence=None if mode is None else bool(mode),
        fabric=state,
        fabric_status=status,
    )


def _fabric(nvml: Calls, handle: Handle) -> tuple[int | None, int]:
    """Return state and status of the NVLink fabric."""

    def ask() -> tuple[int, int]:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return int(info.state), int(info.status)

    return optional(nvml, ask) or (None, 0)
