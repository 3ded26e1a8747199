# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about a machine, as values: GPUs, MIG devices, versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMig:
    """A MIG device."""

    index: int  # among the MIG devices of its GPU; the numbers can have gaps
    uuid: str
    gi: int
    ci: int
    profile: str = ""  # e.g. 1g.10gb; "" where NVML does not report it


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """A GPU."""

    index: int
    minor: int  # of its device node; -1 if it has none: an integrated GPU of a Jetson
    uuid: str
    bus_id: str  # its PCI address as sysfs writes it; "" if it is not on a PCI bus
    name: str
    mig_enabled: bool = False
    mig: tuple[NvmlMig, ...] = ()
    # whether the hardware gives CPU and GPU one address space; None if NVML does not report it
    coherent: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """All GPUs of a machine, and its versions."""

    driver_version: str
    cuda_version: str
    gpus: tuple[NvmlGpu, ...] = ()
    warnings: tuple[str, ...] = ()  # one for each GPU or MIG device that is not described
    unanswered: dict[str, str] = field(default_factory=dict)  # a reason for each GPU that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """Properties that conditions of images (NVIDIA_REQUIRE_*) and of ResourceClaims compare.

    A property that NVML does not report is "".
    """

    brand: str = ""  # as libnvidia-container writes it
    arch: str = ""  # the CUDA compute capability, e.g. 9.0
    addressing: str = ""  # whether CPU and GPU use one address space: ATS, HMM or None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAttributes:
    """The size of a MIG device."""

    memory_mib: int
    multiprocessors: int
    # gi_slices, ci_slices: slices of its GPU instance and its compute instance
    gi_slices: int
    ci_slices: int
    copy: int  # like the four after it, a number of engines
    decoder: int
    encoder: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAttributes:
    """The attributes of a GPU that feature labels show."""

    memory_mib: int | None  # in MiB; None where NVML does not report it
    compute: tuple[int, int]  # the CUDA compute capability; (0, 0) where NVML does not report it
    ecc: bool | None  # False for memory without ECC, None where NVML does not report it
    mig_capable: bool
    clique: str = ""  # its NVLink fabric, as UUID.CLIQUE; "" if it is not in a fabric
    mig: dict[str, MigAttributes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs of a machine are connected."""

    gpus: tuple[str, str]
    # the lowest common ancestor on the PCI bus, as NVML numbers it (see `topology.ANCESTORS`); -1
    # where NVML does not report it
    ancestor: int
    # the number of active NVLinks directly between the GPUs; links to an NVSwitch do not count
    nvlinks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlTopology:
    """The connections of all pairs of GPUs."""

    links: tuple[GpuLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An XID error that the driver reported."""

    uuid: str  # of the GPU; "" if it is unknown
    xid: int
    # gi, ci: the ids of the MIG instances, -1 if the error is of the whole GPU
    gi: int = -1
    ci: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlEvents:
    """The XID events since the last request."""

    watch: int  # a number that changes when the watch starts again: events before that are lost
    events: tuple[XidEvent, ...] = ()
    unwatched: dict[str, str] = field(default_factory=dict)  # why a GPU has no events, by its UUID
    # why a GPU counts as hanging: by index from the worker, by UUID from the agent's client
    unanswered: dict[str, str] = field(default_factory=dict)


class Nvml(Protocol):
    """A source of NvmlReport."""

    def report(self) -> NvmlReport:
        """Return what NVML reports about this machine; NvmlError if NVML does not work at all."""
        ...
