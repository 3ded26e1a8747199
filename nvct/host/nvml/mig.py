# SPDX-License-Identifier: Apache-2.0
"""Verb mig: modes, profiles and instances of all GPUs; and verbs for one change. In the worker.

Contract: a GPU without a handle (lost, or of another driver) is left out; every other refusal, and
a GPU that hangs, is an error, because a change must not be planned from incomplete data. In the
verbs for a change, kinds are NVML's numbers of profiles, and ids are those of instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_uint
from functools import partial

from nvct.errors import NvmlError
from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, optional, string, supported
from nvct.host.nvml.mig_model import (
    ComputeInstance,
    GpuInstance,
    MigGpu,
    MigProfile,
    MigState,
    Placement,
)
from nvct.host.procfs import bus_key, canonical_bus_id

MOST = 16  # the most instances of a GPU, and the most placements of a profile
SUFFIXES = {
    7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 17: "+gfx", 13: "-me", 14: "-me",
    15: "+me.all", 16: "+me.all",
}  # fmt: skip
"""The suffixes in profile names, by kind (nvml.h); NVML's own names sometimes lack them."""
MIB, GIB = 2**20, 2**30


def mig(nvml: Calls) -> MigState:
    """Return the MIG state of all GPUs."""
    each_gpu.check(nvml)
    found = []
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = optional(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, number))
        if handle is not None:
            pci = nvml.nvmlDeviceGetPciInfo(handle)
            found.append((canonical_bus_id(string(pci.busId)), pci, handle))
    found.sort(key=lambda gpu: bus_key(gpu[0]))
    return MigState(
        gpus=tuple(
            _gpu(nvml, index, bus_id, pci, handle)
            for index, (bus_id, pci, handle) in enumerate(found)
        )
    )


def gpu_instances(nvml: Calls, gpu: Handle) -> Iterator[tuple[int, Handle]]:
    """Yield the kind and handle of each GPU instance, in the order of kinds."""
    for kind, info in _profile_infos(nvml, gpu):
        count = c_uint()
        handles = (nvml.module.c_nvmlGpuInstance_t * max(int(info.instanceCount), MOST))()
        nvml.nvmlDeviceGetGpuInstances(gpu, info.id, handles, byref(count))
        for handle in handles[: count.value]:
            yield kind, handle


def compute_instances(nvml: Calls, instance: Handle) -> Iterator[tuple[int, int, Handle]]:
    """Yield the kind, engine kind and handle of each compute instance of a GPU instance."""
    for kind in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        for engine in range(nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT):
            info = compute_profile(nvml, instance, kind, engine)
            if info is None:
                continue
            count = c_uint()
            handles = (nvml.module.c_nvmlComputeInstance_t * MOST)()
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, handles, byref(count))
            for handle in handles[: count.value]:
                yield kind, engine, handle


def compute_profile(nvml: Calls, instance: Handle, kind: int, engine: int) -> Handle | None:
    """Return NVML's info of a compute instance profile, None if the GPU instance lacks it."""
    try:
        return nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, kind, engine, 1)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return None


def _gpu(nvml: Calls, index: int, bus_id: str, pci: Handle, handle: Handle) -> MigGpu:
    mode = supported(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle), None)
    current, pending = (bool(value) for value in mode or (0, 0))
    return MigGpu(
        index=index,
        uuid=string(nvml.nvmlDeviceGetUUID(handle)),
        name=string(nvml.nvmlDeviceGetName(handle)),
        bus_id=bus_id,
        minor=int(supported(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle), -1)),
        device=int(pci.pciDeviceId),
        subsystem=int(pci.pciSubSystemId),
        capable=mode is not None,
        enabled=current,
        pending=pending,
        profiles=_profiles(nvml, handle) if mode is not None else (),
        instances=_instances(nvml, handle) if current else (),
    )


def _profile_infos(nvml: Calls, gpu: Handle) -> Iterator[tuple[int, Handle]]:
    for kind in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            yield kind, nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, kind, 1)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue  # this GPU or driver does not have it


def _profiles(nvml: Calls, gpu: Handle) -> tuple[MigProfile, ...]:
    memory = int(nvml.nvmlDeviceGetMemoryInfo(gpu).total)
    return tuple(
        MigProfile(
            kind=kind,
            id=int(info.id),
            name=f"{info.sliceCount}g.{_gigabytes(memory, int(info.memorySizeMB))}gb"
            f"{SUFFIXES.get(kind, '')}",
            slices=int(info.sliceCount),
            limit=int(info.instanceCount),
            placements=_placements(nvml, gpu, int(info.id)),
            memory_mib=int(info.memorySizeMB),
            multiprocessors=int(info.multiprocessorCount),
            copy=int(info.copyEngineCount),
            decoder=int(info.decoderCount),
            encoder=int(info.encoderCount),
            jpeg=int(info.jpegCount),
            ofa=int(info.ofaCount),
        )
        for kind, info in _profile_infos(nvml, gpu)
    )


def _gigabytes(total: int, mebibytes: int) -> int:
    """Return the gigabytes in a profile's name: eighths of the GPU's, rounded as in go-nvlib."""
    eighths = -(-mebibytes * MIB * 8 // total)
    return int(eighths / 8 * -(-total // GIB) + 0.5)


def _placements(nvml: Calls, gpu: Handle, profile: int) -> tuple[Placement, ...]:
    count = c_uint(MOST)
    places = (nvml.module.c_nvmlGpuInstancePlacement_t * MOST)()

    def ask() -> bool:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, places, byref(count))
        return True

    if not optional(nvml, ask):  # while MIG mode is off, drivers do not report placements
        return ()
    return tuple(Placement(int(p.start), int(p.size)) for p in places[: count.value])


def _instances(nvml: Calls, gpu: Handle) -> tuple[GpuInstance, ...]:
    found = []
    for kind, handle in gpu_instances(nvml, gpu):
        info = nvml.nvmlGpuInstanceGetInfo(handle)
        found.append(
            GpuInstance(
                id=int(info.id),
                kind=kind,
                placement=Placement(int(info.placement.start), int(info.placement.size)),
                compute=tuple(
                    _compute(nvml, kind, engine, compute)
                    for kind, engine, compute in compute_instances(nvml, handle)
                ),
            )
        )
    return tuple(found)


def _compute(nvml: Calls, kind: int, engine: int, handle: Handle) -> ComputeInstance:
    info = nvml.nvmlComputeInstanceGetInfo(handle)
    return ComputeInstance(
        id=int(info.id),
        kind=kind,
        engine=engine,
        start=int(info.placement.start),
        size=int(info.placement.size),
    )


def mig_set_mode(nvml: Calls, uuid: str, enabled: bool) -> bool:  # noqa: FBT001 - by name
    """Set the MIG mode of a GPU; return whether the mode is in force without a reset."""
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    nvml.nvmlDeviceSetMigMode(gpu, int(enabled))
    current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    return bool(current) == enabled


def mig_create(nvml: Calls, uuid: str, kind: int, start: int, size: int) -> int:
    """Create a GPU instance at a placement, in memory slices; return its id."""
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, kind, 1)
    place = nvml.module.c_nvmlGpuInstancePlacement_t(start, size)
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile.id, byref(place))
    return int(nvml.nvmlGpuInstanceGetInfo(instance).id)


def mig_create_compute(nvml: Calls, uuid: str, gi: int, kind: int, engine: int) -> int:
    """Create a compute instance in a GPU instance, where NVML puts it; return its id.

    NvmlError if the GPU instance cannot have a compute instance of this kind.
    """
    instance = _instance(nvml, uuid, gi)
    profile = compute_profile(nvml, instance, kind, engine)
    if profile is None:
        raise NvmlError(
            f"GPU instance {gi} of {uuid} cannot have a compute instance of profile {kind} with "
            f"engine profile {engine}"
        )
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)
    return int(nvml.nvmlComputeInstanceGetInfo(compute).id)


def mig_destroy(nvml: Calls, uuid: str, gi: int) -> None:
    """Destroy a GPU instance, which must not have compute instances."""
    nvml.nvmlGpuInstanceDestroy(_instance(nvml, uuid, gi))


def mig_destroy_compute(nvml: Calls, uuid: str, gi: int, ci: int) -> None:
    """Destroy a compute instance."""
    compute = nvml.nvmlGpuInstanceGetComputeInstanceById(_instance(nvml, uuid, gi), ci)
    nvml.nvmlComputeInstanceDestroy(compute)


def _instance(nvml: Calls, uuid: str, gi: int) -> Handle:
    gpu = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    return nvml.nvmlDeviceGetGpuInstanceById(gpu, gi)
