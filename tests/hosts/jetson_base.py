# SPDX-License-Identifier: Apache-2.0
"""What the trees of boards with an integrated GPU share: JetPack's lists, and their nodes.

The lists are written from tables, one for each type of line: dev and dir into devices.csv, lib and
sym into drivers.csv, as nvidia-l4t-init has them.
"""

from dataclasses import dataclass

from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory
from nvct.host.nvml.model import NvmlGpu
from nvct.host.tegra import csv
from tests.hosts.base import Platform
from tests.support.host_tree import FakeNvml, HostTree
from tests.support.jetson import stat_node


@dataclass(frozen=True, kw_only=True)
class Board(Platform):
    """A board.

    Attributes:
        lists: tables by the type of line that they are written as.
        there: nodes and directories of /dev that there are; a board lacks some that its list has.
        release: /etc/nv_tegra_release.
        reported: the GPUs as NVML reports them.
        drm: directories of sysfs, for the DRM nodes of GPUs on the PCI bus.
        in_procfs: information files of /proc/driver/nvidia/gpus by bus id.
    """

    lists: tuple[tuple[str, str], ...]
    there: str
    release: str
    reported: tuple[NvmlGpu, ...]
    drm: str = ""
    in_procfs: tuple[tuple[str, str], ...] = ()
    mode: str = "csv"
    machine: str = "aarch64"

    def _kernel(self, host: HostTree) -> None:
        host.write("etc/nv_tegra_release", self.release)
        texts = {"devices.csv": "", "drivers.csv": ""}
        for kind, table in self.lists:
            name = "devices.csv" if kind in ("dev", "dir") else "drivers.csv"
            texts[name] += "".join(f"{kind}, {path}\n" for path, _ in self.expand(table))
        for name, text in texts.items():
            host.write(f"etc/{csv.FOLDER}/{name}", text)
        for path, target in self.expand(self.there):
            if target:
                host.link(path.lstrip("/"), target)
            else:
                # udev's 99-tegra-devices.rules gives the group video all but the driver's own.
                mode = 0o666 if path.startswith("/dev/nvidia") else 0o660
                host.write(path.lstrip("/"), mode=mode)
        for path in self.paths(self.drm):
            (host.base / f"sys{path}").mkdir(parents=True)
        for bus_id, text in self.in_procfs:
            host.write(f"proc/driver/nvidia/gpus/{bus_id}/information", text)

    def look(self, host: HostTree) -> Inventory:
        """Look at the host as the commands do."""
        return modes.discover(
            "auto", host.roots, DiscoveryOptions(nvml=FakeNvml(self.reported), stat_node=stat_node)
        )
