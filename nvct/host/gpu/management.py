# SPDX-License-Identifier: Apache-2.0
"""Discovery in mode management, for containers with the driver's own services (GPU operator).

Contract: one device "all" with every node of the driver, and the driver's files without graphics
and configuration. NVML is not called: such a container may have to repair it.
"""

from __future__ import annotations

import posix
import re

from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.discover import find_files, left_out
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.driver.cuda_version import of_driver
from nvct.host.gpu import imex, nodes
from nvct.host.gpu.nodes import StatNode
from nvct.host.model import DeviceNode, DriverFile, Findings, Inventory, NamedDevice
from nvct.host.roots import Roots

# As nvidia-container-toolkit v1.20, pkg/nvcdi/management.go, which excludes the same prefixes.
OTHERS = {
    "nvidia-fs": "mode gds gives it",
    "nvidia-nvswitch": "mode nvswitch gives it",
    "nvidia-nvlink": "only the fabric manager on the host uses it",
}
CAPS = "nvidia-caps"
CAP = re.compile(r"nvidia-cap\d+")


def discover(roots: Roots, options: DiscoveryOptions | None = None) -> Inventory:
    """Return the inventory of a machine: all nodes of the driver as one device, and its files.

    Raises:
        DriverNotFoundError: no driver is installed, or no library fits the loaded module.
        HostError: the driver has no node.
    """
    options = options or DiscoveryOptions()
    findings = Findings()
    machine = options.machine or posix.uname().machine
    version, files = find_files(roots, options, machine, findings, graphical=False)
    files = [file for file in files if not _is_for_desktops(file, findings)]
    driver_nodes = _nodes(roots, options.stat_node, findings)
    if not driver_nodes:
        raise HostError(
            f"the driver has no node in {roots.dev}",
            hint="load the nvidia module and run nvidia-modprobe, or name the place: --dev-root",
        )
    return Inventory(
        driver_version=version,
        mode="management",
        cuda_version=of_driver(version),
        devices=(NamedDevice(name="all", nodes=tuple(driver_nodes)),),
        files=tuple(files),
        left_out=left_out(findings, files),
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
    )


def _is_for_desktops(file: DriverFile, findings: Findings) -> bool:
    if file.kind == "binary" and file.capability == "graphics":
        findings.leave_out(file.host_path, "a program of desktops, which manages no GPU")
        return True
    return False


def _nodes(roots: Roots, stat_node: StatNode, findings: Findings) -> list[DeviceNode]:
    driver_nodes = []
    for name in procfs.list_directory(roots.dev):
        if not name.startswith("nvidia"):
            continue
        node = nodes.make_node(roots, stat_node, name, "the driver's node")
        blocked = [reason for prefix, reason in OTHERS.items() if name.startswith(prefix)]
        if node and blocked:
            findings.leave_out(f"{roots.dev}/{name}", blocked[0])
        elif node:
            driver_nodes.append(node)
    for name in procfs.list_directory(f"{roots.dev}/{CAPS}"):
        if CAP.fullmatch(name):
            node = nodes.make_node(
                roots, stat_node, f"{CAPS}/{name}", "a capability of the driver"
            )
            driver_nodes += [node] if node else []
    return driver_nodes + list(imex.channels(roots, stat_node, findings).values())
