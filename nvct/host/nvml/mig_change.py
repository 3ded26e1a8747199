# SPDX-License-Identifier: Apache-2.0
"""Verbs that change MIG: the mode of a GPU, and instances. Run in the worker.

Each is one change. Kinds are NVML's numbers of profiles, ids those of instances.
"""

from __future__ import annotations

from ctypes import byref

from nvct.errors import NvmlError
from nvct.host.nvml.calls import Calls, Handle
from nvct.host.nvml.mig import compute_profile


def mig_set_mode(nvml: Calls, uuid: str, enabled: bool) -> bool:  # noqa: FBT001 - by name
    """Set the MIG mode of a GPU; return whether the mode is in force, without a reset."""
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    nvml.nvmlDeviceSetMigMode(gpu, int(enabled))
    current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    return bool(current) == enabled


def mig_create(nvml: Calls, uuid: str, kind: int, start: int, size: int) -> int:
    """Create a GPU instance at a place, in memory slices; return its id."""
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, kind, 1)
    place = nvml.module.c_nvmlGpuInstancePlacement_t(start, size)
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile.id, byref(place))
    return int(nvml.nvmlGpuInstanceGetInfo(instance).id)


def mig_create_compute(nvml: Calls, uuid: str, gi: int, kind: int, engine: int) -> int:
    """Create a compute instance in a GPU instance, where NVML puts it; return its id.

    Raises:
        NvmlError: the GPU instance can have none of this kind.
    """
    instance = _instance(nvml, uuid, gi)
    profile = compute_profile(nvml, instance, kind, engine)
    if profile is None:
        raise NvmlError(
            f"GPU instance {gi} of {uuid} can have no compute instance of profile {kind} with "
            f"engine profile {engine}"
        )
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)
    return int(nvml.nvmlComputeInstanceGetInfo(compute).id)


def mig_destroy(nvml: Calls, uuid: str, gi: int) -> None:
    """Destroy a GPU instance, which has no compute instances any more."""
    nvml.nvmlGpuInstanceDestroy(_instance(nvml, uuid, gi))


def mig_destroy_compute(nvml: Calls, uuid: str, gi: int, ci: int) -> None:
    """Destroy a compute instance."""
    compute = nvml.nvmlGpuInstanceGetComputeInstanceById(_instance(nvml, uuid, gi), ci)
    nvml.nvmlComputeInstanceDestroy(compute)


def _instance(nvml: Calls, uuid: str, gi: int) -> Handle:
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    return nvml.nvmlDeviceGetGpuInstanceById(gpu, gi)
