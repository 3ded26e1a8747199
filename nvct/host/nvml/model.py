# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about a machine, as values: GPUs, MIG devices, versions."""

from __future__ import annotations

from dataclasses import field
from typing import Protocol

from nvct.typed import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMig:
    """A MIG device.

    Attributes:
        index: among the MIG devices of its GPU; numbers may be missing in between.
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
        unanswered: a reason for each GPU that hangs, by its index.
    """

    driver_version: str
    cuda_version: str
    gpus: tuple[NvmlGpu, ...] = ()
    warnings: tuple[str, ...] = ()
    unanswered: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProperties:
    """What conditions of container images (NVIDIA_REQUIRE_*) and of ResourceClaims compare.

    Attributes: each is "" where NVML does not report it.
        brand: as libnvidia-container writes it.
        arch: the CUDA compute capability, e.g. 9.0.
        addressing: whether CPU and GPU use one address space: ATS, HMM or None.
    """

    brand: str = ""
    arch: str = ""
    addressing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAttributes:
    """The size of a MIG device.

    Attributes:
        gi_slices, ci_slices: of its GPU instance and its compute instance.
        copy, decoder, encoder, jpeg, ofa: numbers of engines.
    """

    memory_mib: int
    multiprocessors: int
    gi_slices: int
    ci_slices: int
    copy: int
    decoder: int
    encoder: int
    jpeg: int
    ofa: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAttributes:
    """What feature labels tell of a GPU.

    Attributes:
        memory_mib: in MiB; None where NVML does not report it.
        compute: the CUDA compute capability; (0, 0) where NVML does not report it.
        ecc: whether ECC is on; False for memory without ECC, None where NVML does not report it.
        clique: the NVLink fabric that the GPU belongs to, as UUID.CLIQUE; "" if it is in none.
    """

    memory_mib: int | None
    compute: tuple[int, int]
    ecc: bool | None
    mig_capable: bool
    clique: str = ""
    mig: dict[str, MigAttributes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs of a machine are connected.

    Attributes:
        ancestor: the lowest common ancestor on the PCI bus, as NVML numbers it (see
            `topology.ANCESTORS`); -1 where NVML does not report it.
        nvlinks: the number of active NVLinks that lead from one to the other; a link to an
            NVSwitch leads to no GPU.
    """

    gpus: tuple[str, str]
    ancestor: int
    nvlinks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlTopology:
    """The connections of all pairs of GPUs."""

    links: tuple[GpuLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """An XID error that the driver reported.

    Attributes:
        uuid: of the GPU; "" if it is unknown.
        gi, ci: the ids of the GPU instance and compute instance, -1 if the whole GPU is concerned.
    """

    uuid: str
    xid: int
    gi: int = -1
    ci: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlEvents:
    """What happened since the last question.

    Attributes:
        watch: a number that differs after each start of the watch: events between two watches
            are lost.
        unwatched: a reason for each GPU whose events NVML does not deliver, by UUID.
        unanswered: a reason for each GPU that hangs; by its index as from the worker, by its UUID
            as from the agent's client.
    """

    watch: int
    events: tuple[XidEvent, ...] = ()
    unwatched: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)


class Nvml(Protocol):
    """A source of NvmlReport."""

    def report(self) -> NvmlReport:
        """Return what NVML reports about this machine.

        Raises:
            NvmlError: NVML does not work at all.
        """
        ...
