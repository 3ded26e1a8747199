# SPDX-License-Identifier: Apache-2.0
"""The machine as the agent's tasks know it: an immutable snapshot of its GPUs.

Contract: values only. All of it comes from `nvct.host`; there is no second discovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nvct.host.model import Gpu, Mode
from nvct.host.nvml.model import GpuLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of a machine at one time."""

    # nvml; csv on a Tegra, wsl if Windows has the GPUs: both have one device, and no GPUs here
    mode: Mode = "nvml"
    driver_version: str = ""
    cuda_version: str = ""  # the latest that the driver supports, e.g. 13.0; "" if unknown
    gpus: tuple[Gpu, ...] = ()  # those that a container can use, in NVML's order
    # the NUMA node of each GPU by its UUID; a GPU without one is missing
    numa: Mapping[str, int] = field(default_factory=dict)
    links: tuple[GpuLink, ...] = ()  # how each pair of GPUs is connected; empty if that is unknown
    # paths of the driver's nodes that do not belong to one GPU, such as /dev/nvidiactl
    control_nodes: tuple[str, ...] = ()
    imex_channels: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    # why each GPU hangs, by NVML's index: `gpus` has it as it was before, or not at all
    unanswered: Mapping[str, str] = field(default_factory=dict)
