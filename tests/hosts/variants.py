# SPDX-License-Identifier: Apache-2.0
"""Usual hosts, and what a look at them finds as lines of text."""

import functools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvct.errors import NvctError, line
from nvct.host import modes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory, Link
from tests.hosts.base import plain
from tests.support import jetson
from tests.support.host_tree import MAJORS, FakeNvml, HostTree, elf_bytes

WSL = "usr/lib/wsl/lib"
STORE = "usr/lib/wsl/drivers/nv_dispsi.inf_amd64_7cc7738d8e428783"
WSL_FILES = {
    "libcuda.so.1.1": "libcuda.so.1", "libcuda_loader.so": "libcuda.so.1",
    "libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1", "libnvidia-ml_loader.so": "libnvidia-ml.so.1",
    "libnvdxgdmal.so.1": "libnvdxgdmal.so.1", "libnvoptix.so.1": "libnvoptix.so.1",
}  # fmt: skip


@dataclass
class Lab:
    """A host, the mode that it is looked at with, and the options of that."""

    host: HostTree
    mode: str = "nvml"
    options: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def board(self) -> jetson.Board:
        return jetson.Board(self.host)

    def look(self) -> Inventory:
        if self.mode == "csv":
            for name in ("devices", "drivers"):
                lists = getattr(self.board, name)
                self.host.write(f"{jetson.FOLDER}/{name}.csv", lists)
        given = {"stat_node": self.host.stat_node, "machine": "x86_64", "nvml": None}
        options = DiscoveryOptions(**{**given, **self.options})
        return modes.discover(self.mode, self.host.roots, options)

    def lines(self) -> set[str]:
        """Return what is found, one thing a line, without the folder that the host is in."""
        try:
            found = _lines(self.look())
        except NvctError as error:
            error.message = error.message.replace(str(self.host.base), "")
            error.hint = error.hint.replace(str(self.host.base), "")
            found = {line("nvidia-ctk", error)}
        return {plain(self.host, text).encode("unicode_escape").decode() for text in found}


def _lines(inventory: Inventory) -> set[str]:
    found = {
        f"node {node.path} mode {node.mode:o} gid {node.gid}" for node in inventory.control_nodes
    }
    found |= {f"gpu {gpu.index} {gpu.uuid}{' MIG' * gpu.mig_enabled}" for gpu in inventory.gpus}
    found |= {f"devices {' '.join(device.name for device in inventory.devices)}"}
    for device in inventory.devices:
        nodes = (f"{node.path} ({node.major}:{node.minor})" for node in device.nodes)
        found |= {
            f"device {device.name} {device.uuid}",
            *(f"{device.name} has {n}" for n in nodes),
        }
    for file in inventory.every_file():
        found |= {
            f"{file.kind} {file.capability or 'all'} {file.container_path} = {file.host_path}"
        }
        found |= {_link(link) for link in file.links}
    found |= {_link(link) for link in inventory.links}
    found |= {f"left out {entry.path}: {entry.reason}" for entry in inventory.left_out}
    found |= {f"warning: {text}" for text in inventory.warnings}
    found |= {f"note: {text}" for text in inventory.notes}
    return found | {f"CUDA {inventory.cuda_version}", f"compat {inventory.compat_container_root}"}


def _link(link: Link) -> str:
    return f"link {link.path} -> {link.target}"


def listen(host: HostTree, path: str) -> None:
    (host.base / path).parent.mkdir(parents=True)
    os.mknod(host.base / path, stat.S_IFSOCK | 0o666)


# Usual hosts


def server(base: Path) -> Lab:
    return Lab(HostTree(base).module().user_space().gpu(0))


def windows(base: Path) -> Lab:
    host = HostTree(base)
    host.write("proc/devices", "Character devices:\n 10 misc\n")
    host.write("dev/dxg", mode=0o666)
    for name in ("libdxcore.so", "libd3d12.so"):
        host.write(f"driver/{WSL}/{name}", elf_bytes(name))
    host.write(f"driver/{WSL}/libcuda.so.1.1", elf_bytes("libcuda.so.1") + b"1")
    store(host, STORE)
    return Lab(host, "wsl")


def store(host: HostTree, folder: str, version: str = "1") -> None:
    """Put a driver of Windows into a folder of its store."""
    for name, soname in WSL_FILES.items():
        host.write(f"driver/{folder}/{name}", elf_bytes(soname) + version.encode())
    for name in ("nvcubins.bin", "nvidia-smi", "nvngx.dll", "nvml.txt"):
        host.write(f"driver/{folder}/{name}", version, mode=0o755)


def tegra(base: Path) -> Lab:
    (base / "driver").mkdir(parents=True)
    options = {"stat_node": jetson.stat_node, "nvml": FakeNvml((jetson.ORIN,))}
    lab = Lab(HostTree(base), "csv", options)
    lab.board.listed("nvidia0", "nvidia1").cuda()
    return lab


def management(base: Path) -> Lab:
    host = HostTree(base).module().user_space().gpu(0)
    more = {**MAJORS, "nvidia-caps-imex-channels": 234, "nvidia-nvswitch": 510, "nvidia-fs": 507}
    lines = "".join(f"{major} {name}\n" for name, major in more.items())
    host.write("proc/devices", f"Character devices:\n{lines}\nBlock devices:\n")
    return Lab(host, "management")


FEATURE_MAJORS = {
    "nvidia": 195, "nvidia-caps-imex-channels": 234, "nvidia-nvswitch": 510, "nvidia-fs": 507,
    "gdrdrv": 506, "infiniband_verbs": 231, "misc": 10,
}  # fmt: skip


def features(base: Path) -> Lab:
    """Return a host with kernel modules beside the driver's, and none of their nodes."""
    host = HostTree(base)
    lines = "".join(f"{major} {name}\n" for name, major in FEATURE_MAJORS.items())
    host.write("proc/devices", f"Character devices:\n{lines}\nBlock devices:\n  8 sd\n")
    host.write("dev/nvidia0", mode=0o666)
    return Lab(host, "gdrcopy")


BASES: tuple[Callable[[Path], Lab], ...] = (server, windows, tegra, management, features)


Change = Callable[[Lab], object]
CHANGES: dict[str, tuple[Callable[[Path], Lab], Change]] = {}


def on(base: Callable[[Path], Lab]) -> Callable[[Change], Change]:
    """Register a change of a usual host."""

    def register(change: Change) -> Change:
        CHANGES[change.__name__] = base, change
        return change

    return register
