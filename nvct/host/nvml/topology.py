# SPDX-License-Identifier: Apache-2.0
"""Verb topology: how each pair of GPUs is connected. Runs in the worker.

Contract: a GPU or pair that NVML refuses is left out or unknown, and a GPU that hangs is left out;
the others stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, optional, string
from nvct.host.nvml.model import GpuLink, NvmlTopology
from nvct.host.procfs import canonical_bus_id

UNKNOWN = -1
LIMIT_S = 3.0
"""As `each_gpu.LIMIT_S`: the NVLinks of a GPU took 0.6 s on some machines."""


@dataclass(slots=True)
class _Gpu:
    """A GPU, and the bus ids at the other ends of its active NVLinks."""

    uuid: str
    handle: Handle
    bus_id: str
    remote: list[str]


def topology(nvml: Calls) -> NvmlTopology:
    """Return the connections of all pairs of GPUs, in NVML's order."""
    gpus = each_gpu.ask(nvml, _gpu, LIMIT_S).values.values()
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


def _gpu(nvml: Calls, index: int) -> _Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = string(nvml.nvmlDeviceGetUUID(handle))
    return _Gpu(uuid, handle, _bus_id(nvml, handle), _remote_bus_ids(nvml, handle))


def _bus_id(nvml: Calls, handle: Handle) -> str:
    bus_id = optional(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
    return canonical_bus_id(string(bus_id)) if bus_id else ""


def _ancestor(nvml: Calls, first: Handle, second: Handle) -> int:
    level = optional(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(first, second))
    return UNKNOWN if level is None else int(level)


def _remote_bus_ids(nvml: Calls, handle: Handle) -> list[str]:
    """Return the bus id at the other end of each active NVLink."""
    bus_ids = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if optional(nvml, partial(nvml.nvmlDeviceGetNvLinkState, handle, link)) != 1:
            continue
        info = optional(nvml, partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        if info is not None:
            bus_ids.append(canonical_bus_id(string(info.busId)))
    return bus_ids
