# SPDX-License-Identifier: Apache-2.0
"""Verb attributes: what feature labels tell of GPUs and MIG devices. Runs in the worker.

Contract: a GPU or MIG device that NVML refuses, or that hangs, is left out, an attribute is
unknown; the others stay.
"""

from __future__ import annotations

import ctypes
import uuid
from functools import partial

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, optional, string
from nvct.host.nvml.model import GpuAttributes, MigAttributes

MIB = 2**20


def attributes(nvml: Calls) -> dict[str, GpuAttributes]:
    """Return the attributes of each GPU by its UUID."""
    return dict(each_gpu.ask(nvml, _of_index).values.values())


def _of_index(nvml: Calls, index: int) -> tuple[str, GpuAttributes]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return string(nvml.nvmlDeviceGetUUID(handle)), _gpu(nvml, handle)


def _gpu(nvml: Calls, handle: Handle) -> GpuAttributes:
    memory = optional(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    compute = optional(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (0, 0)
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    return GpuAttributes(
        memory_mib=None if memory is None else int(memory.total) // MIB,
        compute=(int(compute[0]), int(compute[1])),
        ecc=_ecc(nvml, handle),
        mig_capable=mode is not None,
        clique=_clique(nvml, handle),
        mig=_mig_devices(nvml, handle) if mode == nvml.NVML_DEVICE_MIG_ENABLE else {},
    )


def _ecc(nvml: Calls, handle: Handle) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetEccMode(handle)[0])
    except nvml.NVMLError_NotSupported:
        return False
    except nvml.NVMLError:
        return None


def _clique(nvml: Calls, handle: Handle) -> str:
    """Return the NVLink fabric of a GPU, "" until the fabric manager has completed it."""

    def ask() -> object:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return info

    info = optional(nvml, ask)
    if info is None or info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0:
        return ""
    # The field is declared as text, which ends at its first zero byte.
    field = type(info).clusterUuid
    cluster = ctypes.string_at(ctypes.addressof(info) + field.offset, field.size)
    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if any(cluster) else ""


def _mig_devices(nvml: Calls, parent: Handle) -> dict[str, MigAttributes]:
    devices = {}
    for index in range(optional(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(parent)) or 0):
        handle = optional(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, index))
        mig_uuid = handle and optional(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        sizes = mig_uuid and optional(nvml, partial(nvml.nvmlDeviceGetAttributes, handle))
        if sizes:
            devices[string(mig_uuid)] = MigAttributes(
                memory_mib=int(sizes.memorySizeMB),
                multiprocessors=int(sizes.multiprocessorCount),
                gi_slices=int(sizes.gpuInstanceSliceCount),
                ci_slices=int(sizes.computeInstanceSliceCount),
                copy=int(sizes.sharedCopyEngineCount),
                decoder=int(sizes.sharedDecoderCount),
                encoder=int(sizes.sharedEncoderCount),
                jpeg=int(sizes.sharedJpegCount),
                ofa=int(sizes.sharedOfaCount),
            )
    return devices
