# SPDX-License-Identifier: Apache-2.0
"""The MIG state of a machine's GPUs, as values: modes, profiles, instances.

A profile is known by its kind, NVML's NVML_GPU_INSTANCE_PROFILE_* (in a compute instance
NVML_COMPUTE_INSTANCE_PROFILE_*). Its id, which NVML's calls take, differs between GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Placement(NamedTuple):
    """A range of slices: of memory for a GPU instance, of compute for a compute instance."""

    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """A kind of GPU instance that a GPU can have."""

    kind: int  # NVML_GPU_INSTANCE_PROFILE_*
    id: int  # as NVML's calls take it
    name: str  # e.g. 1g.10gb+me
    slices: int
    limit: int  # how many instances of it a GPU can have
    placements: tuple[Placement, ...] = ()  # as NVML says; empty if it does not say
    memory_mib: int = 0  # of an instance, as the next ones; 0 if only a table has it
    multiprocessors: int = 0
    copy: int = 0  # like the four after it, a number of engines
    decoder: int = 0
    encoder: int = 0
    jpeg: int = 0
    ofa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """A compute instance."""

    id: int
    kind: int  # NVML_COMPUTE_INSTANCE_PROFILE_*
    engine: int  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_*
    start: int  # in compute slices of its GPU instance, as the size
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """A GPU instance with its compute instances."""

    id: int
    kind: int
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGpu:
    """A GPU."""

    index: int
    uuid: str
    name: str
    bus_id: str  # its PCI address as sysfs writes it
    minor: int  # of its device node; -1 if NVML does not report it
    device: int  # PCI ids, as of the subsystem: device << 16 | vendor
    subsystem: int
    capable: bool = False
    enabled: bool = False
    pending: bool = False  # the mode after the next reset of the GPU
    profiles: tuple[MigProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """All GPUs of a machine, in the order of their PCI addresses."""

    gpus: tuple[MigGpu, ...] = ()
