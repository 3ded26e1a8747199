# SPDX-License-Identifier: Apache-2.0
"""Verb topology: how each pair of GPUs is connected. Runs in the worker.

Contract: a GPU or pair that NVML refuses is left out or unknown; the others stay.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations

from nvct.host.nvml.calls import optional, string
from nvct.host.nvml.model import GpuLink, NvmlTopology
from nvct.host.procfs import canonical_bus_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.calls import Calls, Handle

UNKNOWN = -1


def topology(nvml: Calls) -> NvmlTopology:
    """Return the connections of all pairs of GPUs, in NVML's order."""
    handles: dict[str, Handle] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = optional(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = handle and optional(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        if uuid:
            handles[string(uuid)] = handle
    bus_ids = {uuid: _bus_id(nvml, handle) for uuid, handle in handles.items()}
    remote = {uuid: _remote_bus_ids(nvml, handle) for uuid, handle in handles.items()}
    return NvmlTopology(
        links=tuple(
            GpuLink(
                gpus=(first, second),
                ancestor=_ancestor(nvml, handles[first], handles[second]),
                nvlinks=remote[first].count(bus_ids[second]) if bus_ids[second] else 0,
            )
            for first, second in combinations(handles, 2)
        )
    )


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
