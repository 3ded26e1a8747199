# SPDX-License-Identifier: Apache-2.0
"""Where a machine's files are in this container, and what can be seen of it without NVML."""

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
OWN = (f"{VENDOR}-", f"{DRA_VENDOR}-")  # Prefixes of the agent's own files
NODES = "nvidia"  # Prefix of the driver's nodes in /dev
FOLDERS = ("nvidia-caps", "dri")  # Folders of /dev with further nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the machine's files are, where specifications go, and which paths they contain."""

    roots: Roots
    host_root: str = "/"  # the root that has the host's processes and its containers' names
    # where the host's root may be mounted: it has the hook, which the engine starts, wherever the
    # driver is
    host_roots: tuple[str, ...] = ("/",)
    settings: Settings = field(default_factory=Settings)
    folder: str = SPEC_FOLDER  # of the host's specifications
    mps_root: str = DEFAULT_MPS_ROOT
    kubelet: str = DEFAULT_KUBELET
    stat_node: StatNode = device_nodes.node


@dataclass(frozen=True)
class Reported:
    """A finished report, for a discovery that asks for one."""

    value: NvmlReport

    def report(self) -> NvmlReport:
        """Return the report."""
        return self.value


def node_names(roots: Roots) -> tuple[str, ...]:
    """Return the names of the driver's nodes directly in /dev."""
    return tuple(name for name in procfs.list_directory(roots.dev) if name.startswith(NODES))


def node_marks(roots: Roots) -> tuple[str, ...]:
    """Return the names of these nodes with numbers, mode and owner, which show any change."""
    return tuple(
        f"{name} {fingerprints.observe('node', f'{roots.dev}/{name}')}"
        for name in node_names(roots)
    )


def look(place: Place) -> Machine:
    """Return what can be seen of a machine in /dev and in its root."""
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
    """Return a value that changes when a folder's specifications do, except the agent's own."""
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
