# SPDX-License-Identifier: Apache-2.0
"""Modes other than nvml that give device nodes: gdrcopy, gds, mofed, nvswitch, imex, management.

Contract: each of the first four modes has one device "all", with the nodes of a kernel module.
The driver's user space is not read. A mode without any node is an error that names the kernel
module; nvidia-container-toolkit v1.20 writes a spec that no engine loads.

Mode imex has a device for each IMEX channel, through which GPUs of several machines share memory.
Mode management is for containers with the driver's own services (GPU operator): one device "all"
with every node of the driver, and the driver's files except graphics and configuration. NVML is
not called, because such a container sometimes has to repair it.
"""

from __future__ import annotations

import os
import posix
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.discovery_options import DEFAULTS, DiscoveryOptions
from nvct.host.gpu import nodes
from nvct.host.gpu.nodes import NodeSearch
from nvct.host.model import (
    DeviceNode,
    DriverFile,
    FileKind,
    Findings,
    Inventory,
    Mode,
    NamedDevice,
)
from nvct.host.roots import Roots, join


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureMode:
    """The nodes and files of one mode."""

    folder: str = ""  # of the nodes, relative to /dev
    names: str  # pattern of the nodes' names
    example: str  # a node's path relative to /dev, for messages
    modules: tuple[str, ...]  # the kernel modules that make the nodes, as /sys/module names them
    hint: str
    reason: str
    expected: tuple[tuple[str, str], ...] = ()  # usual nodes, and the effect of a missing one
    files: tuple[tuple[FileKind, str, str], ...] = ()  # kind, path and reason, if they exist


# Nodes and files as nvidia-container-toolkit v1.20: gdrcopy, gds, mofed, nvswitch in
# internal/discover.
FEATURE_MODES: dict[Mode, FeatureMode] = {
    "gdrcopy": FeatureMode(
        names="gdrdrv",
        example="gdrdrv",
        modules=("gdrdrv",),
        hint="install gdrdrv-dkms and load it: modprobe gdrdrv",
        reason="GDRCopy maps GPU memory through it",
    ),
    "gds": FeatureMode(
        names=r"nvidia-fs\d*",
        example="nvidia-fs0",
        modules=("nvidia_fs",),
        hint="install nvidia-fs-dkms and load it: modprobe nvidia-fs",
        reason="cuFile reads storage into GPU memory through it",
        files=(
            ("directory", "/run/udev", "cuFile asks it for the kind of a disk"),
            ("config", "/etc/cufile.json", "configuration of cuFile"),
        ),
    ),
    "mofed": FeatureMode(
        folder="infiniband",
        names=r"uverbs\d+|rdma_cm",
        example="infiniband/uverbs0",
        modules=("ib_uverbs", "rdma_ucm"),
        hint="load them: modprobe -a ib_uverbs rdma_ucm, and the card's own driver",
        reason="RDMA verbs go through it",
        expected=(
            ("infiniband/uverbs0", "no RDMA card can be used"),
            ("infiniband/rdma_cm", "connections by IP address cannot be made"),
        ),
    ),
    "nvswitch": FeatureMode(
        names=r"nvidia-nvswitch(ctl|\d+)",
        example="nvidia-nvswitchctl",
        modules=("nvidia",),
        hint="is this an HGX board, and does nvidia-fabricmanager run?",
        reason="the fabric manager sets NVSwitches up through it",
        expected=(("nvidia-nvswitchctl", "NVSwitches cannot be listed"),),
    ),
}


def discover(mode: Mode, roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return a mode's nodes, as one device "all"; HostError if there is no node."""
    feature, findings = FEATURE_MODES[mode], Findings()
    search = NodeSearch(roots, options.stat_node, findings)
    folder = f"{feature.folder}/" if feature.folder else ""
    mode_nodes: list[DeviceNode] = []
    for name in procfs.list_directory(join(roots.dev, feature.folder)):
        if re.fullmatch(feature.names, name):
            mode_nodes += _node(search, folder + name, feature.reason)
    if not mode_nodes:
        raise _nothing(mode, feature, roots)
    paths = {node.path for node in mode_nodes}
    for name, cost in feature.expected:
        pattern = re.sub(r"\d+$", "[0-9]+", name)
        if not any(re.fullmatch(f"/dev/{pattern}", path) for path in paths):
            findings.warn(f"{roots.dev}/{name} is not a device node: {cost}")
    device = NamedDevice(
        name="all", nodes=tuple(mode_nodes), files=tuple(_files(feature, roots, findings))
    )
    return findings.onto(Inventory(driver_version="", mode=mode, devices=(device,)))


def _node(search: NodeSearch, name: str, reason: str) -> list[DeviceNode]:
    """Return a list of one node; an empty one if the file in /dev is left out."""
    node = nodes.make_node(search, name, reason)
    if node is None:
        search.findings.leave_out(f"{search.roots.dev}/{name}", "it is not a character device")
    return [node] if node else []


def _files(feature: FeatureMode, roots: Roots, findings: Findings) -> Iterator[DriverFile]:
    """Yield the files of a mode: from the driver root if it has them, else from the host."""
    for kind, path, reason in feature.files:
        candidates = candidate_paths(roots, path)
        is_there = os.path.isdir if kind == "directory" else os.path.isfile
        if host_path := next(filter(is_there, candidates), ""):
            yield DriverFile(host_path=host_path, container_path=path, reason=reason, kind=kind)
        else:
            findings.note(f"there is no {candidates[0]}: {reason}")


def candidate_paths(roots: Roots, path: str) -> list[str]:
    """Return the candidate paths of a mode's file: in the driver root, then on the host."""
    _, top, below_top = path.split("/", 2)
    on_host = join({"run": roots.run, "etc": roots.etc}[top], below_top)
    return list(dict.fromkeys((join(roots.driver_root, path), on_host)))


def _nothing(mode: Mode, feature: FeatureMode, roots: Roots) -> HostError:
    problem = f"mode {mode} finds no {roots.dev}/{feature.example}"
    missing = [name for name in feature.modules if not os.path.isdir(f"{roots.sys}/module/{name}")]
    if missing:
        return HostError(f"{problem}: {_are(missing)} not loaded", hint=feature.hint)
    return HostError(
        f"{problem}, though {_are(feature.modules)} loaded",
        hint=feature.hint if mode == "nvswitch" else "is there such hardware, and does udev run?",
    )


def _are(modules: Sequence[str]) -> str:
    names = " and ".join(modules)
    return f"module {names} is" if len(modules) == 1 else f"modules {names} are"


FOLDER = "nvidia-caps-imex-channels"
CHANNEL = re.compile(r"channel(0|[1-9][0-9]*)")


def discover_imex(roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return the inventory of a machine's IMEX channels; HostError if there is no channel."""
    findings = Findings()
    by_number = channels(NodeSearch(roots, options.stat_node, findings))
    if not by_number:
        if FOLDER not in procfs.majors(roots):
            raise HostError(
                f"no IMEX channel: {roots.proc}/devices has no {FOLDER}",
                hint="load nvidia of driver 550 or later, on a machine with multi-node NVLink",
            )
        raise HostError(
            f"no IMEX channel in {roots.dev}/{FOLDER}",
            hint="load nvidia with NVreg_CreateImexChannel0=1, or make the nodes with mknod",
        )
    devices = tuple(NamedDevice(name=str(n), nodes=(by_number[n],)) for n in sorted(by_number))
    return findings.onto(Inventory(driver_version="", mode="imex", devices=devices))


def channels(search: NodeSearch) -> dict[int, DeviceNode]:
    """Return the nodes of the channels by channel number."""
    names = procfs.list_directory(f"{search.roots.dev}/{FOLDER}")
    return {
        int(match[1]): node
        for match in filter(None, map(CHANNEL.fullmatch, names))
        for node in _node(search, f"{FOLDER}/{match[0]}", f"IMEX channel {match[1]}")
    }


# As nvidia-container-toolkit v1.20, pkg/nvcdi/management.go, which excludes the same prefixes.
OTHERS = {
    "nvidia-fs": "mode gds gives it",
    "nvidia-nvswitch": "mode nvswitch gives it",
    "nvidia-nvlink": "only the fabric manager on the host uses it",
}
CAPS = "nvidia-caps"
CAP = re.compile(r"nvidia-cap\d+")


def discover_management(roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return the inventory of a machine: the driver's nodes as one device, and its files.

    DriverNotFoundError if no driver is installed, or no library fits the loaded module; HostError
    if the driver has no node.
    """
    # Imported here, because the agent's worker needs neither.
    from nvct.host.discover import find_files, sort_left_out
    from nvct.host.driver.names import cuda_version_of

    findings = Findings()
    machine = options.machine or posix.uname().machine
    version, files = find_files(roots, options, machine, findings, graphical=False)
    files = [file for file in files if not _is_for_desktops(file, findings)]
    driver_nodes = _nodes(NodeSearch(roots, options.stat_node, findings))
    if not driver_nodes:
        raise HostError(
            f"the driver has no node in {roots.dev}",
            hint="load the nvidia module and run nvidia-modprobe, or name the place: --dev-root",
        )
    sort_left_out(findings, files)
    return findings.onto(
        Inventory(
            driver_version=version,
            mode="management",
            cuda_version=cuda_version_of(version),
            devices=(NamedDevice(name="all", nodes=tuple(driver_nodes)),),
            files=tuple(files),
        )
    )


def _is_for_desktops(file: DriverFile, findings: Findings) -> bool:
    if file.kind == "binary" and file.capability == "graphics":
        findings.leave_out(file.host_path, "a desktop program, which does not manage GPUs")
        return True
    return False


def _nodes(search: NodeSearch) -> list[DeviceNode]:
    driver_nodes, dev = [], search.roots.dev
    for name in procfs.list_directory(dev):
        if not name.startswith("nvidia"):
            continue
        node = nodes.make_node(search, name, "the driver's node")
        blocked = [reason for prefix, reason in OTHERS.items() if name.startswith(prefix)]
        if node and blocked:
            search.findings.leave_out(f"{dev}/{name}", blocked[0])
        elif node:
            driver_nodes.append(node)
    for name in filter(CAP.fullmatch, procfs.list_directory(f"{dev}/{CAPS}")):
        node = nodes.make_node(search, f"{CAPS}/{name}", "a capability of the driver")
        driver_nodes += [node] if node else []
    return driver_nodes + list(channels(search).values())
