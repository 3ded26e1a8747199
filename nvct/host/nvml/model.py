# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about a machine, as values: GPUs, MIG devices, versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMig:
    """A MIG device."""

    index: int  # among the MIG devices of its GPU; numbers may be missing in between
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
    # whether CPU and GPU share one address space, by the hardware; None where NVML does not report
    # it
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
    """What conditions of container images (NVIDIA_REQUIRE_*) and of ResourceClaims compare.

    Each is "" where NVML does not report it.
    """

    brand: str = ""  # as libnvidia-container writes it
    arch: str = ""  # the CUDA compute capability, e.g. 9.0
    addressing: str = ""  # whether CPU and GPU use one address space: ATS, HMM or None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAttributes:
    """The size of a MIG device."""

    memory_mib: int
    multiprocessors: int
    # gi_slices, ci_slices: of its GPU instance and its compute instance
    gi_slices: int
    ci_slices: int
    copy: int  # like the four after it, a number of engines
    decoder: int
    encoder: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAttributes:
    """What feature labels tell of a GPU."""

    memory_mib: int | None  # in MiB; None where NVML does not report it
    compute: tuple[int, int]  # the CUDA compute capability; (0, 0) where NVML does not report it
    ecc: bool | None  # False for memory without ECC, None where NVML does not report it
    mig_capable: bool
    clique: str = ""  # its NVLink fabric, as UUID.CLIQUE; "" if it is in none
    mig: dict[str, MigAttributes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs of a machine are connected."""

    gpus: tuple[str, str]
    # the lowest common ancestor on the PCI bus, as NVML numbers it (see `topology.ANCESTORS`); -1
    # where NVML does not report it
    ancestor: int
    # the number of active NVLinks that lead from one to the other; a link to an NVSwitch leads to
    # no GPU
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
    gi: int = -1  # of the instances, as ci: -1 if the whole GPU is concerned
    ci: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlEvents:
    """What happened since the last question."""

    watch: int  # differs after each start of the watch: events between two are lost
    events: tuple[XidEvent, ...] = ()
    unwatched: dict[str, str] = field(default_factory=dict)  # GPUs without events, by UUID: why
    # a reason for each GPU that hangs; by its index as from the worker, by its UUID as from the
    # agent's client
    unanswered: dict[str, str] = field(default_factory=dict)


class Nvml(Protocol):
    """A source of NvmlReport."""

    def report(self) -> NvmlReport:
        """Return what NVML reports about this machine; NvmlError if NVML does not work at all."""
        ...
