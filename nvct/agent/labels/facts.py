# SPDX-License-Identifier: Apache-2.0
"""The facts of a node of which labels are made: values, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from nvct.agent.core.config_file import NamePattern, Sharing
from nvct.agent.labels.settings import Settings
from nvct.host.gpu.pci import HostDriver
from nvct.host.nvml.model import MigAttributes

Labels: TypeAlias = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigFacts:
    """A MIG device.

    Attributes:
        profile: e.g. 1g.10gb+me.
        size: None if NVML does not report it.
    """

    profile: str
    size: MigAttributes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """A GPU.

    Attributes:
        model: as NVML names it.
        memory_mib: None if NVML does not report it; bytes if the GPU is passed through.
        compute: the CUDA compute capability; (0, 0) if NVML does not report it, and (-1, -1) if
            the GPU is passed through.
        ecc: whether ECC is on, None if NVML does not report it.
        mig_capable: whether it has a MIG mode; mig_enabled: whether that is on.
        pci_class: e.g. 0x030200, "" if unknown.
        clique: of the NVLink fabric, "" if it is in none.
    """

    model: str
    memory_mib: int | None = None
    compute: tuple[int, int] = (0, 0)
    ecc: bool | None = None
    mig_capable: bool = False
    mig_enabled: bool = False
    mig: tuple[MigFacts, ...] = ()
    pci_class: str = ""
    clique: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A node.

    Attributes:
        cuda_version: the latest that the driver supports, e.g. 13.0.
        gpus: in NVML's order; empty if there is no driver.
        machine: the product name of the machine; "" if unknown.
        host_drivers: of vGPUs; None if that is unknown.
        has_nvidia_device: whether there is an NVIDIA device on the PCI bus.
    """

    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[GpuFacts, ...] = ()
    machine: str = ""
    host_drivers: tuple[HostDriver, ...] | None = ()
    has_nvidia_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that labels depend on.

    Attributes:
        mig_strategy: none, single or mixed.
        sharing: None if nothing is shared.
        gpu_names, mig_names: resources' names by model or profile.
        timestamp: in Unix seconds, None for no such label.
        extra: groups of labels that NVIDIA's program does not have: see `settings.EXTRA`.
    """

    mig_strategy: str = "none"
    sharing: Sharing | None = None
    gpu_names: tuple[NamePattern, ...] = ()
    mig_names: tuple[NamePattern, ...] = ()
    timestamp: int | None = None
    extra: frozenset[str] = field(default_factory=frozenset)


def rules_of(settings: Settings, timestamp: int) -> Rules:
    """Return what labels depend on; the timestamp is that of the start, in Unix seconds."""
    return Rules(
        mig_strategy=settings.mig_strategy,
        sharing=settings.sharing,
        gpu_names=settings.gpu_names,
        mig_names=settings.mig_names,
        timestamp=None if settings.no_timestamp else timestamp,
        extra=frozenset(settings.extra_labels),
    )
