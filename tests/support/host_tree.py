# SPDX-License-Identifier: Apache-2.0
"""A host with an NVIDIA driver, as plain files below one directory.

Nothing needs privileges: nodes are plain files, and `named_nodes` derives their numbers from their
names. The libraries are ELF files with a SONAME, enough for a reader of headers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu.nodes import StatNode, named_nodes
from nvct.host.nvml.model import Nvml, NvmlGpu, NvmlMig, NvmlReport
from nvct.host.roots import Roots

VERSION = "580.159.04"
LIB = "usr/lib/x86_64-linux-gnu"
MACHINES = {"x86_64": 62, "aarch64": 183, "i386": 3}
MAJORS = {"nvidia": 195, "nvidia-caps": 236, "nvidia-uvm": 508}
BUSES = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")


def elf_bytes(soname: str, machine: str = "x86_64") -> bytes:
    """Return a 64-bit ELF shared object that has only a SONAME."""
    strings = b"\0" + soname.encode() + b"\0"
    strings += b"\0" * (-len(strings) % 8)
    base = 64 + 2 * 56
    size = base + len(strings) + 4 * 16
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 3, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 4096)
    at = base + len(strings)
    dynamic = struct.pack("<IIQQQQQQ", 2, 4, at, at, at, 64, 64, 8)
    tags = ((14, 1), (5, base), (10, len(strings)), (0, 0))
    return header + load + dynamic + strings + b"".join(struct.pack("<QQ", *tag) for tag in tags)


@dataclass
class HostTree:
    """Builds the tree; methods return the tree, so that calls can be chained."""

    base: Path
    version: str = VERSION
    mig: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    driver_path: str = "driver"

    @property
    def driver(self) -> Path:
        return self.base / self.driver_path

    @property
    def roots(self) -> Roots:
        """Return the roots of this host; the driver root has no device nodes."""
        parts = {name: str(self.base / name) for name in ("proc", "sys", "etc", "run")}
        return Roots(driver_root=str(self.driver), dev_root=str(self.base), **parts)

    @property
    def stat_node(self) -> StatNode:
        return named_nodes(self.roots)

    def options(self, nvml: Nvml | None = None, **more: Any) -> DiscoveryOptions:
        """Return options for a discovery on this tree."""
        return DiscoveryOptions(nvml=nvml, stat_node=self.stat_node, machine="x86_64", **more)

    def write(self, path: str, data: str | bytes = "", *, mode: int = 0o644) -> Path:
        target = self.base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.chmod(0o644)  # capability files are read-only, also for the owner
        target.write_bytes(data.encode() if isinstance(data, str) else data)
        target.chmod(mode)
        return target

    def link(self, path: str, target: str) -> HostTree:
        place = self.base / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
        return self

    def library(
        self, stem: str, soname: str = "", *, suffix: str = "", folder: str = LIB
    ) -> HostTree:
        name = f"{stem}.so.{suffix or self.version}"
        self.write(f"{self.driver_path}/{folder}/{name}", elf_bytes(soname or name))
        if soname and soname != name:
            self.link(f"{self.driver_path}/{folder}/{soname}", name)
        return self

    def module(self) -> HostTree:
        """Load the kernel module and make its control nodes."""
        self.write(
            "proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {self.version}  "
            "Release Build  (dvs-builder@host)  Tue Jul  1 12:00:00 UTC 2025\nGCC version:  gcc\n",
        )
        lines = "".join(f"{major:3} {name}\n" for name, major in MAJORS.items())
        self.write(
            "proc/devices",
            f"Character devices:\n  1 mem\n{lines}226 drm\n\nBlock devices:\n  8 sd\n",
        )
        self.write("proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")
        self.write("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
        for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"):
            self.write(f"dev/{name}", mode=0o666)
        return self

    def user_space(self) -> HostTree:
        """Install the files of the capabilities compute and utility."""
        self.library("libcuda", "libcuda.so.1").link(
            f"{self.driver_path}/{LIB}/libcuda.so", "libcuda.so.1"
        )
        self.library("libnvidia-ml", "libnvidia-ml.so.1")
        self.library("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1")
        self.library("libnvidia-gpucomp")
        self.library("libnvidia-nvvm70", "libnvidia-nvvm70.so.4", suffix="4")
        self.library("libGLX_nvidia", "libGLX_nvidia.so.0")
        self.library("libvdpau_nvidia", "libvdpau_nvidia.so.1", folder=f"{LIB}/vdpau")
        for name in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-settings"):
            self.write(f"{self.driver_path}/usr/bin/{name}", "#!/bin/sh\n", mode=0o755)
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin", "other.bin"):
            place = f"{self.driver_path}/lib/firmware/nvidia/{self.version}/{name}"
            self.write(place, "firmware")
        return self

    def gpu(
        self, index: int, *, minor: int | None = None, uuid: str = "", model: str = ""
    ) -> HostTree:
        """Plug in a GPU with its DRM nodes."""
        minor = index if minor is None else minor
        bus = f"0000:{BUSES[index]}:00.0"
        self.write(
            f"proc/driver/nvidia/gpus/{bus}/information",
            f"Model: \t\t {model or 'NVIDIA H100 80GB HBM3'}\nIRQ:   \t\t 18\n"
            f"GPU UUID: \t {uuid or self.uuid(index)}\nBus Location: \t {bus}\n"
            f"Device Minor: \t {minor}\nGPU Excluded:\t No\n",
        )
        self.write(f"dev/nvidia{minor}", mode=0o666)
        for name in (f"card{index + 1}", f"renderD{128 + index}"):
            (self.base / f"sys/bus/pci/devices/{bus}/drm/{name}").mkdir(parents=True)
            self.write(f"dev/dri/{name}", mode=0o666)
        self.link(f"dev/dri/by-path/pci-{bus}-card", f"../card{index + 1}")
        self.link(f"dev/dri/by-path/pci-{bus}-render", f"../renderD{128 + index}")
        return self

    def instance(self, minor: int, gi: int, ci: int, caps: tuple[int, int]) -> HostTree:
        """Make a MIG device: its capability files, their nodes and the minors' table."""
        self.mig.setdefault(minor, []).append((gi, ci))
        table = self.base / "proc/driver/nvidia-caps/mig-minors"
        before = table.read_text() if table.exists() else "config 1\nmonitor 2\n"
        gi_line, ci_line = f"gpu{minor}/gi{gi}/access", f"gpu{minor}/gi{gi}/ci{ci}/access"
        for name, cap in ((gi_line, caps[0]), (ci_line, caps[1])):
            if f"{name} " not in before:
                before += f"{name} {cap}\n"
            inside = name.replace(f"gpu{minor}/", f"gpu{minor}/mig/")
            self.write(
                f"proc/driver/nvidia/capabilities/{inside}",
                f"DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            )
            self.write(f"dev/nvidia-caps/nvidia-cap{cap}", mode=0o444)
        self.write("proc/driver/nvidia-caps/mig-minors", before)
        return self

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000"


WORKING_NVML = (
    "from nvct.host.nvml.session import NvmlSession as S; "
    "S.check = lambda self: None; S.properties = lambda self: {}; "
)
"""Code for a program with a fake NVML: a host of plain files has no loadable libraries."""


@dataclass
class FakeNvml:
    """An NVML with given values; `error` makes its calls fail."""

    gpus: tuple[NvmlGpu, ...] = ()
    warnings: tuple[str, ...] = ()
    error: Exception | None = None
    calls: int = 0

    def report(self) -> NvmlReport:
        self.calls += 1
        if self.error:
            raise self.error
        return NvmlReport(
            driver_version=VERSION, cuda_version="13.0", gpus=self.gpus, warnings=self.warnings
        )


def nvml_gpu(
    index: int,
    *,
    instances: tuple[tuple[int, int], ...] = (),
    mig_enabled: bool = False,
    profile: str = "1g.10gb",
) -> NvmlGpu:
    """Return a GPU of HostTree.gpu as NVML reports it, with MIG devices for (gi, ci) pairs."""
    mig = tuple(
        NvmlMig(
            index=n,
            uuid=f"MIG-{index:08d}-{gi:04d}-{ci:04d}-cccc-000000000000",
            gi=gi,
            ci=ci,
            profile=profile,
        )
        for n, (gi, ci) in enumerate(instances)
    )
    return NvmlGpu(
        index=index,
        minor=index,
        uuid=HostTree.uuid(index),
        bus_id=f"0000:{BUSES[index]}:00.0",
        name="NVIDIA H100 80GB HBM3",
        mig_enabled=mig_enabled or bool(instances),
        mig=mig,
    )
