# SPDX-License-Identifier: Apache-2.0
"""Verb properties: brand, architecture, addressing mode of each GPU. Runs in the worker."""

from __future__ import annotations

from functools import partial

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, optional, string
from nvct.host.nvml.model import GpuProperties

# By NVML's number, in the spelling of libnvidia-container, which ignores case when it compares:
# CUDA images have conditions on "tesla", "geforcertx", "nvidiartx".
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC",
    "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia",
    "GeForceRTX", "TitanRTX",
)  # fmt: skip

ADDRESSING = ("None", "HMM", "ATS")
"""By NVML_DEVICE_ADDRESSING_MODE_*, as NVIDIA's DRA driver writes it."""


def properties(nvml: Calls, *, complete: bool = False) -> dict[str, GpuProperties]:
    """Return the properties of each GPU by its UUID; a GPU without a UUID is left out.

    Args:
        nvml: the library.
        complete: refuse an answer in which a GPU is missing because it hangs.
    """
    return dict(each_gpu.ask(nvml, _gpu, complete=complete).values.values())


def _gpu(nvml: Calls, index: int) -> tuple[str, GpuProperties]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = string(nvml.nvmlDeviceGetUUID(handle))
    brand = optional(nvml, partial(nvml.nvmlDeviceGetBrand, handle))
    capability = optional(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
    # nvidia-ml-py may lack the function: it is looked up where that is caught.
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetAddressingMode(handle))
    return uuid, GpuProperties(
        brand="" if brand is None else BRANDS[brand if 0 <= brand < len(BRANDS) else 0],
        arch="" if capability is None else f"{capability[0]}.{capability[1]}",
        addressing="" if mode not in range(len(ADDRESSING)) else ADDRESSING[mode],
    )
