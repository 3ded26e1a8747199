# SPDX-License-Identifier: Apache-2.0
"""Verbs for the agent and `nvct doctor`. They run in the worker.

attributes: the values of feature labels, for GPUs and MIG devices. topology: how each pair of GPUs
is connected. readiness: persistence mode and NVLink fabric of each GPU. conditions: the values
that show each GPU's health. preflight: the values that show whether each GPU is at full speed.

Contract: a GPU or MIG device that NVML refuses, or that hangs, is left out; a value that NVML does
not report is unknown. A GPU that fell off the bus does not report its UUID any more, so the last
UUID at each index is kept.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from nvct.host.nvml import each_gpu, samples
from nvct.host.nvml.calls import Calls, Handle, Reading, mig_devices, optional, reason, string
from nvct.host.nvml.model import GpuAttributes, GpuLink, MigAttributes, NvmlTopology
from nvct.host.nvml.sample_model import (
    CONDITION_VALUES,
    PREFLIGHT_VALUES,
    GpuCondition,
    GpuPreflight,
    GpuReadiness,
    MigInstance,
    NvmlConditions,
    NvmlPreflight,
)
from nvct.host.procfs import canonical_bus_id

MIB = 2**20


def attributes(nvml: Calls) -> dict[str, GpuAttributes]:
    """Return the attributes of each GPU by its UUID."""
    return dict(each_gpu.ask(nvml, _gpu).values.values())


def _gpu(nvml: Calls, index: int) -> tuple[str, GpuAttributes]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = optional(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    compute = optional(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle)) or (0, 0)
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    return string(nvml.nvmlDeviceGetUUID(handle)), GpuAttributes(
        memory_mib=None if memory is None else int(memory.total) // MIB,
        compute=(int(compute[0]), int(compute[1])),
        ecc=_ecc(nvml, handle),
        mig_capable=mode is not None,
        clique=_clique(nvml, handle),
        mig=dict(mig_devices(nvml, handle, partial(_mig_device, nvml))),
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
    info = _fabric_info(nvml, handle)
    if info is None or info.state != nvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0:
        return ""
    # pynvml declares the field as text, which would end at the first zero byte.
    field = type(info).clusterUuid
    cluster = ctypes.string_at(ctypes.addressof(info) + field.offset, field.size)
    return f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if any(cluster) else ""


def _mig_device(nvml: Calls, handle: Handle) -> tuple[str, MigAttributes]:
    sizes = nvml.nvmlDeviceGetAttributes(handle)
    return string(nvml.nvmlDeviceGetUUID(handle)), MigAttributes(
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


UNKNOWN = -1
LIMIT_S = 3.0  # as `each_gpu.LIMIT_S`: the NVLinks of a GPU took 0.6 s on some machines


@dataclass(slots=True)
class _LinkedGpu:
    """A GPU, and the bus ids at the other ends of its active NVLinks."""

    uuid: str
    handle: Handle
    bus_id: str
    remote: list[str]


def topology(nvml: Calls) -> NvmlTopology:
    """Return the connections of all pairs of GPUs, in NVML's order."""
    gpus = each_gpu.ask(nvml, _linked_gpu, LIMIT_S).values.values()
    return NvmlTopology(
        links=tuple(
            GpuLink(
                gpus=(first.uuid, second.uuid),
                ancestor=_ancestor(nvml, first.handle, second.handle),
                nvlinks=first.remote.count(second.bus_id) if second.bus_id else 0,
            )
            for first, second in combinations(gpus, 2)
        )
    )


def _linked_gpu(nvml: Calls, index: int) -> _LinkedGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = string(nvml.nvmlDeviceGetUUID(handle))
    return _LinkedGpu(uuid, handle, _bus_id(nvml, handle), _remote_bus_ids(nvml, handle))


def _bus_id(nvml: Calls, handle: Handle) -> str:
    bus_id = optional(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    return canonical_bus_id(string(bus_id)) if bus_id else ""


def _ancestor(nvml: Calls, first: Handle, second: Handle) -> int:
    level = optional(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(first, second))
    return UNKNOWN if level is None else int(level)


def _remote_bus_ids(nvml: Calls, handle: Handle) -> list[str]:
    bus_ids = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if optional(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) != 1:
            continue
        info = optional(nvml, partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        if info is not None:
            bus_ids.append(canonical_bus_id(string(info.busId)))
    return bus_ids


def readiness(nvml: Calls) -> tuple[GpuReadiness, ...]:
    """Return persistence mode and NVLink fabric of each GPU that answers."""
    return tuple(each_gpu.ask(nvml, _readiness_of).values.values())


def _readiness_of(nvml: Calls, index: int) -> GpuReadiness:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    fabric = _fabric_info(nvml, handle)
    return GpuReadiness(
        bus_id=string(nvml.nvmlDeviceGetPciInfo(handle).busId),
        persistence=None if mode is None else bool(mode),
        fabric=int(fabric.state) if fabric else None,
        fabric_status=int(fabric.status) if fabric else 0,
    )


def _fabric_info(nvml: Calls, handle: Handle) -> Any:  # noqa: ANN401 - a struct of NVML
    """Return state, status and name of the NVLink fabric, None if NVML does not report it."""

    def ask() -> object:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
        return info

    return optional(nvml, ask)


HEALTH_FIELDS = {name: samples.FIELDS[name] for name in CONDITION_VALUES if name in samples.FIELDS}
_uuids: dict[int, str] = {}  # UUIDs of the GPUs that have answered, by index


def conditions(nvml: Calls) -> NvmlConditions:
    """Return the values that show the health of each GPU."""
    found = each_gpu.ask(nvml, _condition).values.values()
    well = {gpu.uuid for gpu in found if not gpu.error}
    gpus = [gpu for gpu in found if gpu.uuid and (not gpu.error or gpu.uuid not in well)]
    return NvmlConditions(gpus=tuple(gpus))


def _condition(nvml: Calls, index: int) -> GpuCondition:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _uuids[index] = string(nvml.nvmlDeviceGetUUID(handle))
        # A lost GPU can still report its UUID, so NVML is asked for another value, too.
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        why = f"{nvml.last}: {reason(error)}"
        return GpuCondition(uuid=_uuids.get(index, ""), error=why, code=int(error.value))
    reading = Reading(nvml)
    samples.read_fields(reading, handle, HEALTH_FIELDS)
    reading.read(("energy",), lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle),))
    return GpuCondition(
        uuid=uuid,
        values=reading.values,
        mig=tuple(mig_devices(nvml, handle, partial(_instance, nvml))),
    )


def _instance(nvml: Calls, handle: Handle) -> MigInstance:
    return MigInstance(
        uuid=string(nvml.nvmlDeviceGetUUID(handle)),
        gi=int(nvml.nvmlDeviceGetGpuInstanceId(handle)),
        ci=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
    )


PREFLIGHT_FIELDS = {
    name: samples.FIELDS[name] for name in PREFLIGHT_VALUES if name in samples.FIELDS
}
PREFLIGHT_NUMBERS = {
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_max": "nvmlDeviceGetMaxPcieLinkWidth",
    "pcie_gen_slot": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_gen_max": "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "persistence": "nvmlDeviceGetPersistenceMode",
    "clock_event_reasons": "nvmlDeviceGetCurrentClocksThrottleReasons",  # the name up to 525
}
"""By name, the function of NVML that returns the value."""


def preflight(nvml: Calls) -> NvmlPreflight:
    """Return the values that show whether each GPU is at full speed."""
    gpus = tuple(each_gpu.ask(nvml, _preflight_of, LIMIT_S).values.values())
    return NvmlPreflight(driver_version=string(nvml.nvmlSystemGetDriverVersion()), gpus=gpus)


def _preflight_of(nvml: Calls, index: int) -> GpuPreflight:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    reading = Reading(nvml)
    samples.read_fields(reading, handle, PREFLIGHT_FIELDS)
    for name, function in PREFLIGHT_NUMBERS.items():
        reading.number(name, function, handle)
    reading.read(("ecc", "ecc_next"), lambda: nvml.nvmlDeviceGetEccMode(handle))
    reading.read(("mig",), lambda: nvml.nvmlDeviceGetMigMode(handle)[:1])
    reading.read(("utilization",), lambda: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,))
    links = [
        optional(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link))
        for link in range(nvml.NVML_NVLINK_MAX_LINKS)
    ]
    if links.count(None) < len(links):
        reading.add("nvlinks", links.count(1))
    return GpuPreflight(
        uuid=string(nvml.nvmlDeviceGetUUID(handle)),
        name=string(nvml.nvmlDeviceGetName(handle)),
        values=reading.values,
    )
