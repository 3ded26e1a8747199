# SPDX-License-Identifier: Apache-2.0
"""A driver on plain files and a farm beside it, both on one file system."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

from nvct.farm.folder import Farm
from nvct.host import discover
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.linux.kernel import KERNEL, Kernel
from tests.support.host_tree import LIB, VERSION, HostTree, elf_bytes

NEWER = "580.199.02"
ICD = "usr/share/vulkan/icd.d/nvidia_icd.json"


class FarmLab:
    def __init__(self, base: Path) -> None:
        self.host = HostTree(base).module().user_space().gpu(0).gpu(1)
        self.host.library("libnvidia-allocator", "libnvidia-allocator.so.1")
        self.host.write(f"driver/{ICD}", '{"ICD": {"library_path": "libGLX_nvidia.so.0"}}')
        self.path = base / "farm"

    @property
    def farm(self) -> Farm:
        return self.with_kernel(KERNEL)

    def with_kernel(self, kernel: Kernel) -> Farm:
        return Farm(path=str(self.path), kernel=kernel)

    @property
    def wanted(self) -> DiscoveryOptions:
        return self.host.options(compat32=True)

    def find(self) -> Inventory:
        return discover.discover(self.host.roots, self.wanted)

    def driver_file(self, path: str) -> Path:
        return self.host.driver / path

    @property
    def libcuda(self) -> Path:
        return self.driver_file(f"{LIB}/libcuda.so.{VERSION}")

    def install(self, version: str, *, in_place: bool = False) -> None:
        """Put another version's user space on the disk, as a package or as an installer does."""
        new = replace(self.host, version=version)
        folder = self.driver_file(LIB)
        for old in [*folder.rglob(f"*.so.{self.host.version}")]:
            stem = old.name.partition(".so.")[0]
            soname = f"{stem}.so.1"
            (old.parent / f"{stem}.so.{version}").write_bytes(elf_bytes(soname))
            old.unlink()
        for name in ("nvidia-smi", "nvidia-cuda-mps-control"):
            path = self.driver_file(f"usr/bin/{name}")
            if in_place:
                path.write_text(f"#!/bin/sh\necho {version}\n")
            else:
                fresh = path.with_name(".new")
                fresh.write_text(f"#!/bin/sh\necho {version}\n")
                fresh.chmod(0o755)
                fresh.rename(path)
        firmware = self.driver_file("lib/firmware/nvidia")
        shutil.rmtree(firmware / self.host.version)
        new.write(f"driver/lib/firmware/nvidia/{version}/gsp_ga10x.bin", "firmware")

    def load(self, version: str) -> None:
        """Load another kernel module, as the next boot does."""
        path = self.host.base / "proc/driver/nvidia/version"
        path.write_text(path.read_text().replace(self.host.version, version))
        self.host.version = version


def tree(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what is below a folder: links as `-> target`, files as their content."""
    found = {}
    for folder, folders, files in os.walk(path):
        for name in [*folders, *files]:
            full = os.path.join(folder, name)
            below = os.path.relpath(full, path)
            if os.path.islink(full):
                found[below] = f"-> {os.readlink(full)}"
            elif os.path.isfile(full):
                with open(full, "rb") as file:
                    found[below] = file.read().decode("latin-1")
    return found
