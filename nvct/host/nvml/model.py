# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about a machine, as values: GPUs, MIG devices, versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMig:
    """A MIG device.

    Attributes:
        index: among the MIG devices of its GPU; numbers may be missing in between.
        gi: the id of its GPU instance.
        ci: the id of its compute instance.
        profile: e.g. 1g.10gb; "" where NVML does not report it.
    """

    index: int
    uuid: str
    gi: int
    ci: int
    profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """A GPU.

    Attributes:
        minor: of its device node; -1 if it has none: an integrated GPU of a Jetson.
        bus_id: its PCI address as sysfs writes it; "" if it is not on a PCI bus.
        coherent: whether CPU and GPU share one address space, by the hardware; None where NVML
            does not report it.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    name: str
    mig_enabled: bool = False
    mig: tuple[NvmlMig, ...] = ()
    coherent: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """All GPUs of a machine, and its versions.

    Attributes:
        warnings: a sentence for each GPU or MIG device that NVML does not describe.
    """

    driver_version: str
    cuda_version: str
    gpus: tuple[NvmlGpu, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """What conditions of container images compare (NVIDIA_REQUIRE_*).

    Attributes:
        brand: as libnvidia-container writes it; "" where NVML does not report it.
        arch: the CUDA compute capability, e.g. 9.0; "" where NVML does not report it.
    """

    brand: str = ""
    arch: str = ""


class Nvml(Protocol):
    """A source of NvmlReport."""

    def report(self) -> NvmlReport:
        """Return what NVML reports about this machine.

        Raises:
            NvmlError: NVML does not work at all.
        """
        ...
