# SPDX-License-Identifier: Apache-2.0
"""What a machine has: GPUs, MIG devices, device nodes and files of the driver.

Contract: values only, no I/O. Every node and file carries the reason why it is in and its
capability class, "" where it belongs to every container. What was seen and left out has a reason
as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Capability: TypeAlias = Literal[
    "", "compute", "utility", "graphics", "video", "display", "ngx", "compat32"
]
# "library": the dynamic linker finds it; "module": a program loads it by its path (Xorg, gbm).
FileKind: TypeAlias = Literal[
    "library", "binary", "firmware", "socket", "config", "module", "directory"
]
Mode: TypeAlias = Literal[
    "nvml", "csv", "wsl", "management", "gdrcopy", "gds", "imex", "mofed", "nvswitch"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device node of the host, and its path in a container."""

    path: str
    host_path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    reason: str
    capability: Capability = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A symbolic link to make in a container: `path` -> `target`, which is stored as it is."""

    target: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFile:
    """A file or directory that containers get from the driver.

    Attributes:
        machine: that a library is for, as uname names it; "" where its headers are unreadable.
        soname: of a library, "" where it has none.
        links: what has to stand beside a library so that programs find it.
        needed: of a library, the names of those that it is linked to.
    """

    host_path: str
    container_path: str
    reason: str
    kind: FileKind
    capability: Capability = ""
    machine: str = ""
    soname: str = ""
    links: tuple[Link, ...] = ()
    needed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file or node of the host that containers do not get, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """A device of a mode whose devices are no GPUs of procfs or NVML: Tegra, WSL, IMEX, GDS.

    Attributes:
        name: its name by index, or the only one it has, e.g. "all" or an IMEX channel's number.
        uuid: its name by UUID, "" where it has none.
        links: to make in a container, of no file in particular.
    """

    name: str
    uuid: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    files: tuple[DriverFile, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device: a compute instance of a GPU instance.

    Attributes:
        index: as NVML counts them on the parent.
        profile: e.g. "1g.10gb", "" where NVML does not tell.
        cap_minors: minors of the two nvidia-caps nodes: GPU instance, compute instance.
        nodes: those nodes.
    """

    index: int
    uuid: str
    gi: int
    ci: int
    profile: str = ""
    cap_minors: tuple[int, int]
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def has_graphics(self) -> bool:
        """Whether the profile may use the parent's DRM nodes."""
        return "gfx" in self.profile.partition("+")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A physical GPU.

    Attributes:
        index: as NVML counts: in the order of the PCI bus.
        minor: of /dev/nvidia<minor>; not the index.
        bus_id: as sysfs writes it, e.g. 0000:18:00.0; "" where unknown.
        node: None where the node is missing; the GPU can't be given to a container then.
        by_path: links of /dev/dri/by-path whose target is one of drm_nodes.
        coherent: whether CPU and GPU share one address space (NVML's addressing mode ATS); None
            where it is not known or was not asked.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    model: str
    node: DeviceNode | None
    drm_nodes: tuple[DeviceNode, ...] = ()
    by_path: tuple[Link, ...] = ()
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    coherent: bool | None = None

    @property
    def is_display_only(self) -> bool:
        """Whether this is the display adapter of a DGX station, which nobody computes on."""
        return self.model in ("DGX Display", "NVIDIA DGX Display")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that was found on a machine.

    Attributes:
        driver_version: "" in modes that have nothing to do with the driver's user space.
        mode: how it was made.
        cuda_version: that the driver supports, e.g. "13.0"; "" where unknown.
        devices: of modes other than nvml; they have no gpus.
        links: to make in every container, of no file in particular.
        compat_container_root: where a container's CUDA compat libraries are, "" for the usual
            place.
        left_out: what was seen on the host and containers do not get.
        warnings: sentences about what is missing or broken and what that costs.
        notes: sentences about how something was found.
    """

    driver_version: str
    mode: Mode = "nvml"
    cuda_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[NamedDevice, ...] = ()
    control_nodes: tuple[DeviceNode, ...] = ()
    files: tuple[DriverFile, ...] = ()
    links: tuple[Link, ...] = ()
    compat_container_root: str = ""
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Findings:
    """Collects the sentences of one discovery, and what it leaves out."""

    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, LeftOut] = field(default_factory=dict)

    def warn(self, sentence: str) -> None:
        """Keep a warning once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def note(self, sentence: str) -> None:
        """Keep a note once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add(self, others: Findings) -> None:
        """Keep what another part of the discovery found."""
        for sentence in others.warnings:
            self.warn(sentence)
        for sentence in others.notes:
            self.note(sentence)
        for path, entry in others.left_out.items():
            self.left_out.setdefault(path, entry)

    def leave_out(self, path: str, reason: str) -> None:
        """Keep why a path of the host is left out; the first reason stands."""
        self.left_out.setdefault(path, LeftOut(path=path, reason=reason))
