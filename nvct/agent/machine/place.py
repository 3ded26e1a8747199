# SPDX-License-Identifier: Apache-2.0
"""Where a machine is, seen from this container, and what is to be seen of it without NVML."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TypeAlias

from nvct.agent.device_plugin.settings import DRA_VENDOR, SPEC_FOLDER, VENDOR, Settings
from nvct.agent.nvml.host_verbs import Machine
from nvct.container.plan import fingerprints
from nvct.host import feature_modes, modes, procfs
from nvct.host.gpu.nodes import NodeSearch, StatNode
from nvct.host.model import Findings
from nvct.host.nvml.model import NvmlReport
from nvct.host.roots import Roots
from nvct.linux import device_nodes

Signature: TypeAlias = tuple[tuple[str, int, int, int], ...]

DEFAULT_MPS_ROOT = "/run/nvidia/mps"
DEFAULT_KUBELET = "/var/lib/kubelet"
OWN = (f"{VENDOR}-", f"{DRA_VENDOR}-")  # How names of the agent's own files begin
NODES = "nvidia"  # How names of the driver's nodes in /dev begin
FOLDERS = ("nvidia-caps", "dri")  # Of further nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the machine is, where specifications go, and what paths they have."""

    roots: Roots
    host_root: str = "/"  # where the host's processes and the names of its containers are
    # where the host's root may be mounted: the engine starts the hook, so its path is one of the
    # host, wherever the driver is
    host_roots: tuple[str, ...] = ("/",)
    settings: Settings = field(default_factory=Settings)
    folder: str = SPEC_FOLDER  # of the host's specifications
    mps_root: str = DEFAULT_MPS_ROOT
    kubelet: str = DEFAULT_KUBELET
    stat_node: StatNode = device_nodes.node


@dataclass(frozen=True)
class Reported:
    """A report that was made already, for a discovery that asks for it."""

    value: NvmlReport

    def report(self) -> NvmlReport:
        """Return the report."""
        return self.value


def node_names(roots: Roots) -> tuple[str, ...]:
    """Return the names of the driver's nodes directly in /dev."""
    return tuple(name for name in procfs.list_directory(roots.dev) if name.startswith(NODES))


def node_marks(roots: Roots) -> tuple[str, ...]:
    """Return the names of these nodes with numbers, mode and owner: a change of any is one."""
    return tuple(
        f"{name} {fingerprints.observe('node', f'{roots.dev}/{name}')}"
        for name in node_names(roots)
    )


def look(place: Place) -> Machine:
    """Return what is to be seen of a machine in /dev and in its root."""
    roots = place.roots
    folders = tuple(name for name in FOLDERS if os.path.lexists(f"{roots.dev}/{name}"))
    names = [
        *node_names(roots),
        *(
            f"{folder}/{name}"
            for folder in folders
            for name in procfs.list_directory(f"{roots.dev}/{folder}")
        ),
    ]
    search = NodeSearch(roots, place.stat_node, Findings())
    found = {name: place.stat_node(f"{roots.dev}/{name}") for name in names}
    return Machine(
        mode=modes.detect(roots),
        nodes={name: node for name, node in found.items() if node is not None},
        folders=folders,
        imex_channels=tuple(sorted(feature_modes.channels(search))),
    )


def signature(folder: str) -> Signature:
    """Return a value that changes when the specifications in a folder do, the agent's aside."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.path, entry.stat())
                for entry in entries
                if entry.name.endswith((".json", ".yaml")) and not entry.name.startswith(OWN)
            ]
    except OSError:
        return ()
    return tuple(
        (path, status.st_ino, status.st_size, status.st_mtime_ns) for path, status in sorted(found)
    )
