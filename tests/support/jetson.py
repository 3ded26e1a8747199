# SPDX-License-Identifier: Apache-2.0
"""A board with an integrated GPU; files that are added to it are listed in its CSV files.

Nothing needs privileges: its nodes are plain files.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from nvct.host.gpu.nodes import NodeStat
from nvct.host.nvml.model import NvmlGpu
from nvct.host.tegra import csv
from tests.support.host_tree import HostTree, elf_bytes

FOLDER = f"etc/{csv.FOLDER}"
LIB = "/usr/lib/aarch64-linux-gnu/nvidia"
ORIN = NvmlGpu(
    index=0, minor=0, uuid="54d0709b-558d-5a59-9c65-0c5fc14a21a4", bus_id="", name="Orin (nvgpu)"
)
THOR = NvmlGpu(index=0, minor=0, uuid="GPU-thor", bus_id="0000:01:00.0", name="NVIDIA Thor")
RTX = NvmlGpu(index=1, minor=1, uuid="GPU-rtx", bus_id="0000:03:00.0", name="RTX PRO 6000")


def stat_node(path: str) -> NodeStat | None:
    """Return the status of a plain file as a node; the group is video if access is restricted."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    mode = status.st_mode & 0o777
    return (500, 0, mode, 0, 0 if mode == 0o666 else 44) if stat.S_ISREG(status.st_mode) else None


@dataclass
class Board:
    """A board; files that are added to it are listed in its CSV files."""

    host: HostTree
    devices: str = ""
    drivers: str = ""

    def node(self, name: str, mode: int = 0o666) -> Board:
        self.host.write(f"dev/{name}", mode=mode)
        return self

    def listed(self, *names: str) -> Board:
        self.devices += "".join(f"dev, /dev/{name}\n" for name in names)
        for name in names:
            self.node(name)
        return self

    def library(self, path: str, soname: str = "") -> Board:
        self.host.write(f"driver{path}", elf_bytes(soname or os.path.basename(path), "aarch64"))
        self.drivers += f"lib, {path}\n"
        return self

    def link(self, path: str, target: str) -> Board:
        self.host.link(f"driver{path}", target)
        self.drivers += f"sym, {path}\n"
        return self

    def cuda(self) -> Board:
        self.library(f"{LIB}/libcuda.so.1.1", "libcuda.so.1")
        return self.library(f"{LIB}/libnvidia-ml.so.1")
