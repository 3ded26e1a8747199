# SPDX-License-Identifier: Apache-2.0
"""Discovery in mode csv: Jetson and IGX boards, whose nodes and files JetPack lists in CSV files.

Contract: NVML is called for the CUDA version, the UUIDs, and to detect a discrete GPU; without
NVML there is one device. The rules are those of nvidia-container-toolkit v1.20
(pkg/nvcdi/lib-csv.go) and of go-nvlib (pkg/nvlib/info/property-extractor.go).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from nvct.errors import HostError, NvmlError
from nvct.host import discovery_options, procfs
from nvct.host.discovery_options import DEFAULTS, DiscoveryOptions, check_absolute
from nvct.host.driver import libraries
from nvct.host.driver.tree import Tree
from nvct.host.go_pattern import expand
from nvct.host.gpu import nodes
from nvct.host.gpu.nodes import NodeSearch
from nvct.host.model import DeviceNode, DriverFile, Findings, Inventory, Link, NamedDevice
from nvct.host.nvml.model import NvmlGpu, NvmlReport
from nvct.host.roots import Roots, join
from nvct.host.tegra import csv
from nvct.host.tegra.csv import RELEASE, Entry, Mounts

ORIN_COMPAT_ROOT = "/usr/local/cuda/compat_orin"
REGULAR_NODE = re.compile(r"/dev/nvidia[0-9]+")
CONTROL_NODES = frozenset(f"/dev/{name}" for name, _, _ in nodes.CONTROL_NODES)
# On Thor the integrated GPU always has this PCI bus id, and its display has this node.
THOR_BUS_ID = re.compile(r"0000:01:00\.[0-7]")
BY_PATH = "/dev/dri/by-path"
THOR_DISPLAY_NODE = "nvidia2"


class _Board(NamedTuple):
    roots: Roots
    options: DiscoveryOptions
    findings: Findings

    @property
    def nodes(self) -> NodeSearch:
        return NodeSearch(self.roots, self.options.stat_node, self.findings)


def is_tegra(roots: Roots) -> bool:
    """Return whether JetPack's CSV files, not procfs, define what containers get.

    True if a GPU is integrated; also if the Tegra files exist, and either procfs lists no GPU or
    nvgpu is loaded. An IGX board with the driver for only its discrete GPU has the files as well.
    """
    gpus = procfs.gpus(roots)
    if any(is_integrated_name(gpu.model) for gpu in gpus):
        return True
    return _has_tegra_files(roots) and (not gpus or os.path.isdir(f"{roots.sys}/module/nvgpu"))


def is_integrated_name(name: str) -> bool:
    """Return whether a GPU's name, as nvidia-smi -L shows it, is that of an integrated GPU."""
    return "(nvgpu)" in name or "NVIDIA Thor" in name


def discover(roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return the inventory of a Jetson or IGX board.

    HostError if the CSV files are empty, or none of their nodes exists; UsageError if a search
    path is not absolute.
    """
    board = _Board(roots, options, Findings())
    entries = csv.read(roots, board.options, board.findings)
    if not entries:
        paths = csv.list_paths(roots, board.options)
        folders = {os.path.dirname(path) for path in paths}
        location = folders.pop() if len(paths) > 1 == len(folders) else ", ".join(paths)
        raise HostError(
            "no CSV file lists what containers get on this board: "
            f"{location or f'{roots.etc}/{csv.FOLDER}'}",
            hint="install nvidia-l4t-init, or name the files: --csv.file",
        )
    files, links, library = _files(board, entries)
    report = _ask(board, library)
    devices = _devices(board, _listed_nodes(board, entries), files, report)
    return board.findings.onto(
        Inventory(
            driver_version=(report.driver_version if report else "")
            or procfs.driver_version(roots),
            mode="csv",
            cuda_version=report.cuda_version if report else "",
            devices=devices,
            files=tuple(files),
            links=links,
            compat_container_root=_compat_root(board.options, report),
        )
    )


def _has_tegra_files(roots: Roots) -> bool:
    paths = (f"{roots.etc}/{RELEASE}", join(roots.driver_root, f"etc/{RELEASE}"))
    if any(os.path.isfile(path) for path in paths):
        return True
    family = procfs.read_text(f"{roots.sys}/devices/soc0/family") or ""
    return family.lower().startswith("tegra")


def _files(
    board: _Board, entries: Sequence[Entry]
) -> tuple[list[DriverFile], tuple[Link, ...], str | None]:
    """Return the files, the links to directories, and the host path of NVML's library."""
    check_absolute(board.options.search_paths)
    with Tree(board.roots.driver_root) as tree:
        mounts = Mounts(tree, board.roots, board.findings)
        for entry in entries:
            if entry.kind != "dev":
                mounts.take(entry, board.options.search_paths)
        mounts.take_release()
        files = mounts.files()
        library = libraries.host_path_of(files, "libnvidia-ml.so") or _installed_nvml(tree)
    if libraries.host_path_of(files, "libcuda.so") is None:
        names = ", ".join(dict.fromkeys(os.path.basename(entry.source) for entry in entries))
        board.findings.warn(f"no libcuda in {names}: CUDA will not start in containers")
    return files, mounts.links(), library


def _installed_nvml(tree: Tree) -> str | None:
    for directory in libraries.machine_directories("aarch64"):
        for name in ("libnvidia-ml.so.1", "nvidia/libnvidia-ml.so.1"):
            library = tree.file(join(directory, name))
            if library is not None:
                return tree.host_path(library.real)
    return None


def _ask(board: _Board, library: str | None) -> NvmlReport | None:
    nvml = board.options.nvml_of(library)
    if nvml is None:
        board.findings.note("no NVML: one device, and a container's own CUDA compat is not used")
        return None
    try:
        report = nvml.report()
    except NvmlError as error:
        board.findings.warn(
            f"{error.message}: one device, and a container's own CUDA compat is not used"
        )
        return None
    for warning in report.warnings:
        board.findings.warn(warning)
    return report


def _compat_root(options: DiscoveryOptions, report: NvmlReport | None) -> str:
    """Return the folder of CUDA compat in this board's containers, "" for the usual folder."""
    if report and any("Orin (nvgpu)" in gpu.name for gpu in report.gpus):
        return options.compat_container_root or ORIN_COMPAT_ROOT
    return ""


def _listed_nodes(board: _Board, entries: Sequence[Entry]) -> dict[str, DeviceNode]:
    roots = board.roots
    by_path: dict[str, DeviceNode] = {}
    with Tree(roots.dev_root or "/") as tree:
        for entry in (entry for entry in entries if entry.kind == "dev"):
            paths = expand(join("/", entry.path), tree.names)
            names = [path.removeprefix("/dev/") for path in paths if path.startswith("/dev/")]
            made = (nodes.make_node(board.nodes, name, entry.reason) for name in names)
            listed = {node.path: node for node in made if node}
            by_path |= listed
            if not listed:
                reason = f"{entry.reason}, but the host does not have it"
                board.findings.leave_out(entry.path, reason)
    if not by_path:
        raise HostError(
            f"{roots.dev} has none of the device nodes that this board's CSV files name",
            hint="load the GPU's module, or name the place: --dev-root",
        )
    return by_path


def _devices(
    board: _Board,
    listed: dict[str, DeviceNode],
    files: Iterable[DriverFile],
    report: NvmlReport | None,
) -> tuple[NamedDevice, ...]:
    gpus = report.gpus if report else ()
    if len(gpus) <= 1 or discovery_options.ONE_CSV_DEVICE in board.options.flags:
        uuid = gpus[0].uuid if len(gpus) == 1 else ""
        return (NamedDevice(name="0", uuid=uuid, nodes=_sorted(listed.values())),)
    kinds = [(gpu.index, _is_integrated(gpu)) for gpu in gpus]
    if kinds != [(0, True), (1, False)]:
        names = ", ".join(gpu.name for gpu in gpus)
        board.findings.warn(
            f"the GPUs {names} are not an integrated and a discrete one: all are one device"
        )
        return (NamedDevice(name="0", nodes=_sorted(listed.values())),)
    integrated, discrete = gpus
    by_path_mounted = any(file.container_path == BY_PATH for file in files)
    own_nodes = _discrete_nodes(board, discrete, with_by_path=not by_path_mounted)
    shared = [node for path, node in listed.items() if not REGULAR_NODE.fullmatch(path)]
    rest = _integrated_nodes(board, listed, discrete.minor, {node.path for node in own_nodes})
    first = NamedDevice(name="0", uuid=integrated.uuid, nodes=rest)
    if not own_nodes:
        return (first,)
    control = nodes.control_nodes(board.nodes)
    others = (node for node in shared if node.path not in CONTROL_NODES)
    every = _sorted([*own_nodes, *control, *others])
    return first, NamedDevice(name="1", uuid=discrete.uuid, nodes=every)


def _is_integrated(gpu: NvmlGpu) -> bool:
    # Before Thor the integrated GPU is not on the PCI bus.
    if gpu.bus_id:
        return THOR_BUS_ID.fullmatch(gpu.bus_id) is not None
    return is_integrated_name(gpu.name)


def _discrete_nodes(board: _Board, gpu: NvmlGpu, *, with_by_path: bool) -> list[DeviceNode]:
    """Return a discrete GPU's own nodes; none if /dev/nvidia<minor> is missing.

    If the CSV files mount the host's /dev/dri/by-path, no node is made in it.
    """
    node = nodes.gpu_node(board.nodes, gpu.minor, gpu.index)
    if node is None:
        return []
    drm, by_path = nodes.drm_nodes(board.nodes, gpu.bus_id, gpu.index)
    by_name = {os.path.basename(node.path): node for node in drm}
    links = [replace(by_name[os.path.basename(link.target)], path=link.path) for link in by_path]
    return [node, *drm, *(links if with_by_path else ())]


def _integrated_nodes(
    board: _Board, listed: dict[str, DeviceNode], discrete_minor: int, discrete: set[str]
) -> tuple[DeviceNode, ...]:
    """Return the listed nodes without those of the discrete GPU, and Thor's display node.

    nvidia-container-toolkit v1.20 keeps the discrete GPU's DRM nodes.
    """
    discrete = {*discrete, f"/dev/nvidia{discrete_minor}"}
    remaining = [node for path, node in listed.items() if path not in discrete]
    display = nodes.make_node(board.nodes, THOR_DISPLAY_NODE, "display of the integrated GPU")
    if display is not None and display.path not in discrete:
        remaining.append(display)
    return _sorted(remaining)


def _sorted(unsorted: Iterable[DeviceNode]) -> tuple[DeviceNode, ...]:
    by_path: dict[str, DeviceNode] = {}
    for node in unsorted:
        by_path.setdefault(node.path, node)
    return tuple(by_path[path] for path in sorted(by_path))
