# SPDX-License-Identifier: Apache-2.0
"""The MIG state of a machine's GPUs, as values: modes, profiles, instances; and its changes.

A profile is identified by its kind, NVML's NVML_GPU_INSTANCE_PROFILE_* (for a compute instance
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
    placements: tuple[Placement, ...] = ()  # empty if NVML does not report them
    memory_mib: int = 0  # of one instance, like the values after it; 0 in a profile of a table
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
    start: int  # like the size, in compute slices of its GPU instance
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
    # device, subsystem: PCI ids, device << 16 | vendor
    device: int
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
    """Set the MIG mode of a GPU; the answer is whether it is in force without a reset."""

    uuid: str
    enabled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a GPU instance at a placement, in memory slices; the answer is its id."""

    uuid: str
    kind: int  # NVML_GPU_INSTANCE_PROFILE_*
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCompute:
    """Create a compute instance in a GPU instance; the answer is its id."""

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
"""The verb of each change, whose arguments are the change's fields, and the answer's type."""
