# SPDX-License-Identifier: Apache-2.0
"""Verb properties: brand and architecture of each GPU. Runs in the worker."""

from __future__ import annotations

from functools import partial

from nvct.host.nvml.calls import optional, string
from nvct.host.nvml.model import GpuProperties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.calls import Calls

# By NVML's number, in the spelling of libnvidia-container, which ignores case when it compares:
# CUDA images have conditions on "tesla", "geforcertx", "nvidiartx".
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC",
    "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia",
    "GeForceRTX", "TitanRTX",
)  # fmt: skip


def properties(nvml: Calls) -> dict[str, GpuProperties]:
    """Return brand and architecture of each GPU by its UUID; a GPU without a UUID is left out."""
    by_uuid: dict[str, GpuProperties] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = optional(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = handle and optional(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        if not uuid:
            continue
        brand = optional(nvml, partial(nvml.nvmlDeviceGetBrand, handle))
        capability = optional(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
        by_uuid[string(uuid)] = GpuProperties(
            brand="" if brand is None else BRANDS[brand if 0 <= brand < len(BRANDS) else 0],
            arch="" if capability is None else f"{capability[0]}.{capability[1]}",
        )
    return by_uuid
