# SPDX-License-Identifier: Apache-2.0
"""The inventory of a machine: GPUs, MIG devices, device nodes and files of the driver.

Contract: values only, no I/O. Every node and file has the reason for its inclusion and a
capability, "" if every container gets it. Every node or file that is left out has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Capability: TypeAlias = Literal[
    "", "compute", "utility", "graphics", "video", "display", "ngx", "compat32"
]
# "library": for the dynamic linker; "module": a program loads it by its path (Xorg, gbm).
FileKind: TypeAlias = Literal[
    "library", "binary", "firmware", "socket", "config", "module", "directory"
]
DISPLAY_ONLY = ("DGX Display", "NVIDIA DGX Display")  # The models of GPUs that do not compute
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
    """A symbolic link to make in a container: `path` -> `target`, a text that is not resolved."""

    target: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFile:
    """A file or directory of the driver that containers get."""

    host_path: str
    container_path: str
    reason: str
    kind: FileKind
    capability: Capability = ""
    machine: str = ""  # of a library, as uname prints it; "" if its headers are unreadable
    soname: str = ""  # of a library, "" if it has none
    links: tuple[Link, ...] = ()  # to make beside a library so that programs find it
    needed: tuple[str, ...] = ()  # of a library, its DT_NEEDED names


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file or node of the host that containers do not get, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """A device of a mode other than nvml: Tegra, WSL, IMEX, GDS."""

    name: str  # its index, or its only name, e.g. "all" or the number of an IMEX channel
    uuid: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    files: tuple[DriverFile, ...] = ()
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device: a compute instance of a GPU instance."""

    index: int  # among the MIG devices of the parent GPU, as NVML numbers them
    uuid: str
    gi: int
    ci: int
    profile: str = ""  # e.g. "1g.10gb", "" if NVML does not report it.
    cap_minors: tuple[int, int]  # of the nvidia-caps nodes of GPU and compute instance
    nodes: tuple[DeviceNode, ...] = ()

    @property
    def has_graphics(self) -> bool:
        """Return whether the device gets the parent's DRM nodes: its profile has "gfx"."""
        return "gfx" in self.profile.partition("+")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A physical GPU."""

    index: int  # NVML's, in the order of the PCI bus
    minor: int  # of /dev/nvidia<minor>; not the index
    uuid: str
    bus_id: str  # as sysfs writes it, e.g. 0000:18:00.0; "" if unknown.
    model: str
    node: DeviceNode | None  # None if it is missing: then no container can get the GPU
    drm_nodes: tuple[DeviceNode, ...] = ()
    by_path: tuple[Link, ...] = ()  # links in /dev/dri/by-path to one of drm_nodes
    mig_enabled: bool = False
    mig: tuple[MigDevice, ...] = ()
    # whether CPU and GPU share one address space (NVML's addressing mode ATS); None if unknown or
    # not requested
    coherent: bool | None = None

    @property
    def is_display_only(self) -> bool:
        """Return whether this is the display adapter of a DGX Station, which does not compute."""
        return self.model in DISPLAY_ONLY


WarningKind: TypeAlias = Literal["driver", "node", "gpu", "unasked"]
"""The subject of a warning: the driver's files and answers; a missing device node; a GPU that the
driver refuses; NVML, which is needed and not available."""


class HostWarning(str):
    """A warning of discovery with its kind; an Inventory that was read from JSON has plain str."""

    __slots__ = ("kind",)
    kind: WarningKind


def warning_kind(sentence: str) -> WarningKind:
    """Return the kind of a warning, "driver" if it is a plain str."""
    return sentence.kind if isinstance(sentence, HostWarning) else "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The devices and files of a machine."""

    driver_version: str  # "" in modes that do not use the driver's user space
    mode: Mode = "nvml"
    cuda_version: str = ""  # the latest that the driver supports, e.g. "13.0"; "" if unknown.
    gpus: tuple[Gpu, ...] = ()
    devices: tuple[NamedDevice, ...] = ()  # of modes other than nvml, which have no gpus
    control_nodes: tuple[DeviceNode, ...] = ()
    files: tuple[DriverFile, ...] = ()
    links: tuple[Link, ...] = ()
    compat_container_root: str = ""  # the folder of CUDA compat in containers; "" is the usual
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def every_file(self) -> list[DriverFile]:
        """Return the files of the machine and of its devices."""
        return [*self.files, *(file for device in self.devices for file in device.files)]

    def every_node(self) -> Iterator[DeviceNode]:
        """Yield the nodes of the machine and of its devices."""
        yield from self.control_nodes
        for gpu in self.gpus:
            yield from (gpu.node,) if gpu.node else ()
            yield from gpu.drm_nodes
            yield from (node for mig in gpu.mig for node in mig.nodes)
        yield from (node for device in self.devices for node in device.nodes)


@dataclass(slots=True)
class Findings:
    """Collects the warnings, notes and left-out paths of one discovery."""

    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, LeftOut] = field(default_factory=dict)

    def warn(self, sentence: str, kind: WarningKind = "driver") -> None:
        """Add a warning, unless it is there already."""
        if sentence not in self.warnings:
            warning = HostWarning(sentence)
            warning.kind = kind
            self.warnings.append(warning)

    def note(self, sentence: str) -> None:
        """Add a note, unless it is there already."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add(self, other: Findings) -> None:
        """Add the findings of another part of the discovery."""
        for sentence in other.warnings:
            self.warn(sentence, warning_kind(sentence))
        for sentence in other.notes:
            self.note(sentence)
        for path, entry in other.left_out.items():
            self.left_out.setdefault(path, entry)

    def onto(self, inventory: Inventory) -> Inventory:
        """Return an inventory with these findings."""
        return replace(
            inventory,
            left_out=tuple(self.left_out.values()),
            warnings=tuple(self.warnings),
            notes=tuple(self.notes),
        )

    def leave_out(self, path: str, reason: str) -> None:
        """Record why a host path is left out; the first reason for a path counts."""
        self.left_out.setdefault(path, LeftOut(path=path, reason=reason))
