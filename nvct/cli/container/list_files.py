# SPDX-License-Identifier: Apache-2.0
"""Command nvidia-container-cli list: the paths that a container needs, one per line.

The order is libnvidia-container's: nodes, IMEX channels, MIG capabilities, programs, libraries,
sockets, firmware. Within a kind, files come in the order of libnvidia-container's table, then
those that only nvct delivers, by path. Paths are resolved, and relative to the driver root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvct.cli.container.arguments import Option, Parsed, Selected, select, select_mig_capable
from nvct.errors import HostError, RequestError
from nvct.host.driver import names as driver_names
from nvct.host.gpu.nodes import StatNode, capability_directory, mig_minors
from nvct.host.model import DriverFile, FileKind, Gpu, Inventory
from nvct.host.roots import Roots, below, join

TEXT = "List what a container needs for GPU support: everything, or what the options select."
OPTIONS = (
    Option("device", "d", "ID", "Nodes of these: all, indexes, UUIDs, PCI bus ids, G:M"),
    Option("libraries", "l", "", "Libraries of the driver"),
    Option("binaries", "b", "", "Programs of the driver"),
    Option("ipcs", "i", "", "Sockets of the driver's daemons"),
    Option("firmwares", "f", "", "Firmware of the GPUs"),
    Option("compat32", "", "", "With --libraries: 32-bit ones, too"),
    Option("mig-config", "", "ID", "Files for configuring MIG (ID: all)"),
    Option("mig-monitor", "", "ID", "Files for monitoring MIG (ID: all)"),
    Option("imex-channel", "", "CHANNEL", "Nodes of IMEX channels"),
    Option("no-persistenced", "", "", "No socket of nvidia-persistenced"),
    Option("no-fabricmanager", "", "", "No socket of nv-fabricmanager"),
)
NODES = ("dxg", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
BINARIES = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager",
    "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
)  # fmt: skip
LIBRARIES = (
    "libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq",
    "libcuda", "libcudadebugger", "libnvidia-opencl", "libnvidia-gpucomp",
    "libnvidia-ptxjitcompiler", "libnvidia-fatbinaryloader", "libnvidia-allocator",
    "libnvidia-compiler", "libnvidia-pkcs11", "libnvidia-pkcs11-openssl3", "libnvidia-nvvm",
    "libnvidia-tileiras", "libnvidia-ngx", "libvdpau_nvidia", "libnvidia-encode",
    "libnvidia-opticalflow", "libnvcuvid", "libnvidia-eglcore", "libnvidia-glcore",
    "libnvidia-tls", "libnvidia-glsi", "libnvidia-fbc", "libnvidia-ifr", "libnvidia-rtcore",
    "libnvoptix", "libGLX_nvidia", "libEGL_nvidia", "libGLESv2_nvidia", "libGLESv1_CM_nvidia",
    "libnvidia-glvkspirv", "libnvidia-cbl", "libdxcore",
)  # fmt: skip
PERSISTENCED, FABRICMANAGER = "nvidia-persistenced/socket", "nvidia-fabricmanager/socket"
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
CAPABILITIES = "/proc/driver/nvidia/capabilities"
CAPS, CHANNELS = "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels/channel"


@dataclass(slots=True)
class Lister:
    """One run of the command."""

    inventory: Inventory
    roots: Roots
    options: Parsed
    stat_node: StatNode
    mps: str = ""

    def __post_init__(self) -> None:
        if not set(self.options.values) - {"imex-channel"}:
            everything = ("libraries", "binaries", "ipcs", "firmwares", "compat32")
            self.options.values.update({name: [None] for name in everything})
            self.options.values["device"] = ["all"]

    def lines(self) -> Iterator[str]:
        """Yield the lines to print.

        RequestError if an option names something that the host lacks or that is not valid;
        HostError if an IMEX channel has no device node.
        """
        visible = select(self.options.words("device"), self.inventory)
        capable = {
            gpu.minor
            for gpu in self.inventory.gpus
            if gpu.mig_enabled or os.path.isdir(capability_directory(self.roots, gpu.minor))
        }
        managed = {
            name: select_mig_capable(self.options.words(name), name, visible, capable)
            for name in ("mig-config", "mig-monitor")
        }
        if self.options.has("device"):
            whole = all(gpus is None for gpus in managed.values())
            yield from self._devices(visible, with_migs=whole)
        yield from self._channels()
        for name, gpus in managed.items():
            if gpus:
                yield from self._managed(name.removeprefix("mig-"), gpus)
        if self.options.has("binaries"):
            yield from self._files("binary", BINARIES)
        if self.options.has("libraries"):
            yield from self._files("library", LIBRARIES)
            if self.options.has("compat32"):
                yield from self._files("library", LIBRARIES, compat32=True)
        if self.options.has("ipcs"):
            yield from self._sockets()
        if self.options.has("firmwares"):
            yield from self._files("firmware", ())

    def _devices(self, visible: Selected, *, with_migs: bool) -> Iterator[str]:
        nodes = [
            *self.inventory.control_nodes,
            *(n for d in self.inventory.devices for n in d.nodes),
        ]
        yield from dict.fromkeys(_sorted([node.path for node in nodes], NODES))
        for gpu in visible.gpus:
            if gpu.node is not None:
                yield gpu.node.path
        for gpu, device in visible.migs if with_migs else ():
            instance = f"{CAPABILITIES}/gpu{gpu.minor}/mig/gi{device.gi}"
            yield f"{instance}/access"
            yield f"{instance}/ci{device.ci}/access"
            for node in device.nodes:
                yield node.path

    def _channels(self) -> Iterator[str]:
        for word in self.options.words("imex-channel"):
            if not (word.isascii() and word.isdigit() and len(word) < 10):
                raise RequestError(
                    f"imex-channel error: {word}: not a channel number", hint="write 0, or 0,1"
                )
            path = f"{CHANNELS}{int(word)}"
            if self.stat_node(f"{self.roots.dev}/{path.removeprefix('/dev/')}") is None:
                raise HostError(
                    f"imex-channel error: {path} is not a device node",
                    hint="make it with mknod in /dev/nvidia-caps-imex-channels",
                )
            yield path

    def _managed(self, name: str, gpus: Sequence[Gpu]) -> Iterator[str]:
        table = mig_minors(self.roots)
        yield f"{CAPABILITIES}/mig/{name}"
        if name in table:
            yield f"{CAPS}/nvidia-cap{table[name]}"
        for gpu in gpus:
            yield f"{CAPABILITIES}/gpu{gpu.minor}/mig"
            yield CAPS
            for capability, minor in table.items():
                if capability.startswith(f"gpu{gpu.minor}/"):
                    yield f"{CAPS}/nvidia-cap{minor}"

    def _files(
        self, kind: FileKind, order: Sequence[str], *, compat32: bool = False
    ) -> Iterator[str]:
        file_paths = [
            # For firmware, the path from which the kernel loads it.
            file.container_path if kind == "firmware" else self._path(file)
            for file in self.inventory.every_file()
            if file.kind == kind and (file.capability == "compat32") is compat32
        ]
        yield from dict.fromkeys(_sorted(file_paths, order))

    def _path(self, file: DriverFile) -> str:
        return below(self.roots.driver_root, file.host_path)

    def _sockets(self) -> Iterator[str]:
        ends = []
        if not self.options.has("no-persistenced"):
            ends.append(PERSISTENCED)
        if not self.options.has("no-fabricmanager"):
            ends.append(FABRICMANAGER)
        if not self.mps:
            ends.append("nvidia-mps")
        sockets = [f for f in self.inventory.files if f.kind == "socket"]
        for end in ends:
            yield from (self._path(f) for f in sockets if f.host_path.endswith(f"/{end}"))
        if self.mps and os.path.isdir(join(self.roots.driver_root, self.mps)):
            yield self.mps


def _sorted(paths: Sequence[str], order: Sequence[str]) -> list[str]:
    """Return paths in the order of a table of names; the others last, by path."""
    positions = {name: position for position, name in enumerate(order)}

    def key(path: str) -> tuple[int, str]:
        name = driver_names.stem(os.path.basename(path))
        return positions.get(name, len(positions)), path

    return sorted(paths, key=key)
