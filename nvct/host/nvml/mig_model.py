# SPDX-License-Identifier: Apache-2.0
"""The MIG state of a machine's GPUs, as values: modes, profiles, instances; and its changes.

A profile is known by its kind, NVML's NVML_GPU_INSTANCE_PROFILE_* (in a compute instance
NVML_COMPUTE_INSTANCE_PROFILE_*). Its id, which NVML's calls take, differs between GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import NamedTuple, TypeAlias


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMode:
    """Set the MIG mode of a GPU; answered by whether it is in force, without a reset."""

    uuid: str
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a GPU instance at a place, in memory slices; answered by its id."""

    uuid: str
    kind: int  # NVML_GPU_INSTANCE_PROFILE_*
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCompute:
    """Create a compute instance in a GPU instance; answered by its id."""

    uuid: str
    gi: int
    kind: int  # NVML_COMPUTE_INSTANCE_PROFILE_*
    engine: int  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_*


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroy:
    """Destroy a GPU instance without compute instances."""

    uuid: str
    gi: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyCompute:
    """Destroy a compute instance."""

    uuid: str
    gi: int
    ci: int


MigChange: TypeAlias = SetMode | Create | CreateCompute | Destroy | DestroyCompute
CHANGES: Mapping[type, tuple[str, type]] = {
    Create: ("mig_create", int),
    CreateCompute: ("mig_create_compute", int),
    Destroy: ("mig_destroy", NoneType),
    DestroyCompute: ("mig_destroy_compute", NoneType),
    SetMode: ("mig_set_mode", bool),
}
"""The verb of each, whose arguments are its fields, and the type of the answer."""
