# SPDX-License-Identifier: Apache-2.0
"""Device nodes of the driver: control nodes, GPUs, DRM nodes with their by-path links, MIG.

Contract: nodes are read with lstat and never opened: opening one can start the driver. A missing
node is a warning, and a device that needs it is left out. Only NVML has the UUIDs of MIG devices;
procfs shows the instances at no cost.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from nvct.host import procfs
from nvct.host.model import Capability, DeviceNode, Findings, Link
from nvct.host.roots import Roots
from nvct.linux import device_nodes

# (major, minor, mode, uid, gid) of the character device at a host path; None for other files.
NodeStat: TypeAlias = tuple[int, int, int, int, int]
StatNode: TypeAlias = Callable[[str], NodeStat | None]

CONTROL_NODES: tuple[tuple[str, str, Capability], ...] = (
    ("nvidiactl", "every use of the driver opens it", ""),
    ("nvidia-uvm", "CUDA needs unified memory", "compute"),
    ("nvidia-uvm-tools", "CUDA debuggers and profilers trace unified memory", "compute"),
    ("nvidia-modeset", "displays are set up through it", "display"),
)
COSTS = {
    "nvidiactl": "nothing can talk to the driver; nvidia-modprobe makes it",
    "nvidia-uvm": "CUDA will not start in containers until the nvidia-uvm module is loaded",
    "nvidia-uvm-tools": "tools that trace unified memory will not work",
}
# Fixed numbers, from the kernel's admin-guide/devices.txt; renderD128 has minor 128 and card1 has
# 1. The kernel assigns the others when it loads the module.
FIXED_MAJORS = {"drm": 226, "infiniband_verbs": 231, "misc": 10}
# Nodes with a fixed name: the major's name in /proc/devices, the minor.
SINGLE = {
    "nvidiactl": ("nvidia", 255),
    "nvidia-modeset": ("nvidia", 254),
    "nvidia-uvm": ("nvidia-uvm", 0),
    "nvidia-uvm-tools": ("nvidia-uvm", 1),
    "nvidia-nvswitchctl": ("nvidia-nvswitch", 255),
    "nvidia-nvlink": ("nvidia-nvlink", 0),
    "gdrdrv": ("gdrdrv", 0),
    "rdma_cm": ("misc", 0),
    "dxg": ("misc", 0),
}
# Nodes whose name ends in a number: the major's name, the minor of number 0.
NUMBERED = {
    "nvidia": ("nvidia", 0),
    "nvidia-cap": ("nvidia-caps", 0),
    "nvidia-fs": ("nvidia-fs", 0),
    "nvidia-nvswitch": ("nvidia-nvswitch", 0),
    "channel": ("nvidia-caps-imex-channels", 0),
    "uverbs": ("infiniband_verbs", 192),  # the kernel's IB_UVERBS_BASE_MINOR
    "card": ("drm", 0),
    "renderD": ("drm", 0),
}
NAMED = re.compile(rf"({'|'.join(NUMBERED)})(\d+)")


def named_nodes(roots: Roots) -> StatNode:
    """Return a stat function for trees that have plain files as device nodes.

    A file's numbers come from its name and from proc/devices. A real node keeps its own numbers.
    """
    majors = procfs.majors(roots)

    def stat_node(path: str) -> NodeStat | None:
        numbers_and_owner = device_nodes.node(path)
        if numbers_and_owner is not None:
            return numbers_and_owner
        try:
            status = os.lstat(path)
        except OSError:
            return None
        numbers = _numbers(os.path.basename(path), majors)
        if not stat.S_ISREG(status.st_mode) or numbers is None:
            return None
        # Nodes belong to root; the owner of a file that an unprivileged user made is ignored.
        owner = (0, 0) if status.st_uid else (0, status.st_gid)
        return (*numbers, status.st_mode & 0o777, *owner)

    return stat_node


class NodeSearch(NamedTuple):
    """A search for nodes: directories, a stat function, and the findings that get its warnings."""

    roots: Roots
    stat_node: StatNode
    findings: Findings


def make_node(
    search: NodeSearch, name: str, reason: str, capability: Capability = ""
) -> DeviceNode | None:
    """Return the node at /dev/<name>, None if there is none."""
    host_path = f"{search.roots.dev}/{name}"
    try:
        status = search.stat_node(host_path)
    except OSError:
        return None
    if status is None:
        return None
    major, minor, mode, uid, gid = status
    return DeviceNode(
        path=f"/dev/{name}",
        host_path=host_path,
        major=major,
        minor=minor,
        mode=mode & 0o7777,
        uid=uid,
        gid=gid,
        reason=reason,
        capability=capability,
    )


def control_nodes(search: NodeSearch) -> tuple[DeviceNode, ...]:
    """Return the nodes that every GPU needs, sorted by path."""
    nodes = []
    for name, reason, capability in CONTROL_NODES:
        if node := make_node(search, name, reason, capability):
            nodes.append(node)
        elif capability != "display":
            path = f"{search.roots.dev}/{name}"
            search.findings.warn(f"{path} is not a device node: {COSTS[name]}", "node")
    return tuple(sorted(nodes, key=lambda node: node.path))


def gpu_node(search: NodeSearch, minor: int, index: int) -> DeviceNode | None:
    """Return a GPU's node /dev/nvidia<minor>, None with a warning if it is missing."""
    node = make_node(search, f"nvidia{minor}", f"GPU {index}")
    if node is None:
        path = f"{search.roots.dev}/nvidia{minor}"
        search.findings.warn(f"{path} is not a device node: GPU {index} is left out", "node")
    return node


def drm_nodes(
    search: NodeSearch, bus_id: str, index: int
) -> tuple[tuple[DeviceNode, ...], tuple[Link, ...]]:
    """Return a GPU's nodes in /dev/dri, and the by-path links that lead to them."""
    made = (
        make_node(search, f"dri/{name}", f"DRM of GPU {index}", "graphics")
        for name in procfs.drm_names(search.roots, bus_id)
    )
    nodes = [node for node in made if node]
    names = {os.path.basename(node.path) for node in nodes}
    links = []
    for kind in ("card", "render"):
        name = f"dri/by-path/pci-{bus_id}-{kind}"
        try:
            target = os.readlink(f"{search.roots.dev}/{name}")
        except OSError:
            continue
        if os.path.basename(target) in names:
            # In a container the directory is always /dev, whatever the host's dev root is.
            links.append(Link(target=f"../{os.path.basename(target)}", path=f"/dev/{name}"))
    return tuple(sorted(nodes, key=lambda node: node.path)), tuple(links)


def cap_nodes(
    search: NodeSearch, minors: tuple[int, int], name: str
) -> tuple[DeviceNode, ...] | None:
    """Return the nodes of a MIG device's GPU and compute instance, None if either is missing."""
    kinds = zip(minors, ("GPU instance", "compute instance"), strict=True)
    nodes = [
        make_node(search, f"nvidia-caps/nvidia-cap{minor}", f"{kind} of MIG device {name}")
        for minor, kind in kinds
    ]
    present = tuple(node for node in nodes if node)
    return present if len(present) == len(nodes) else None


def _numbers(name: str, majors: dict[str, int]) -> tuple[int, int] | None:
    match = NAMED.fullmatch(name)
    kind, minor = SINGLE.get(name) or NUMBERED.get(match[1] if match else "", ("", 0))
    if match and name not in SINGLE:
        minor += int(match[2])
    # Before driver 550.40 the major's name was nvidia-frontend.
    nvidia = majors.get("nvidia", majors.get("nvidia-frontend", 195))
    major = nvidia if kind == "nvidia" else majors.get(kind, FIXED_MAJORS.get(kind))
    return None if major is None else (major, minor)


# 64 GPUs have 8000 lines: one search of the whole text is three times as fast as one per line.
LINES = re.compile(r"^(config|monitor|gpu\d+/gi\d+(?:/ci\d+)?/access) (\d+)$", re.MULTILINE)
INSTANCE = re.compile(r"(gi|ci)(\d+)")


def mig_minors(roots: Roots) -> dict[str, int]:
    """Return the minors of mig-minors by name, e.g. {"gpu0/gi1/ci0/access": 13}."""
    return parse_minors(procfs.read_text(f"{roots.proc}/driver/nvidia-caps/mig-minors") or "")


def parse_minors(text: str) -> dict[str, int]:
    """Parse mig-minors; unknown lines are skipped."""
    return {name: int(minor) for name, minor in LINES.findall(text)}


def capability_directory(roots: Roots, minor: int) -> str:
    """Return the procfs directory that lists a GPU's GPU instances."""
    return f"{roots.proc}/driver/nvidia/capabilities/gpu{minor}/mig"


def mig_instances(roots: Roots, minor: int) -> dict[int, list[int]]:
    """Return the compute instances of each GPU instance of a GPU."""
    directory = capability_directory(roots, minor)
    return {
        gi: _instance_numbers("ci", procfs.list_directory(f"{directory}/gi{gi}"))
        for gi in _instance_numbers("gi", procfs.list_directory(directory))
    }


def cap_minors(
    roots: Roots, table: dict[str, int], minor: int, gi: int, ci: int
) -> tuple[int, int] | None:
    """Return the minors of a GPU instance's and a compute instance's nodes, None if unknown."""
    pair = []
    for name in (f"gi{gi}", f"gi{gi}/ci{ci}"):
        number = table.get(f"gpu{minor}/{name}/access")
        if number is None:
            path = f"{capability_directory(roots, minor)}/{name}/access"
            match = re.search(r"^DeviceFileMinor: (\d+)$", procfs.read_text(path) or "", re.M)
            if not match:
                return None
            number = int(match[1])
        pair.append(number)
    return pair[0], pair[1]


def _instance_numbers(kind: str, names: list[str]) -> list[int]:
    matches = (INSTANCE.fullmatch(name) for name in names)
    return sorted(int(match[2]) for match in matches if match and match[1] == kind)
