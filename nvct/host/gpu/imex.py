# SPDX-License-Identifier: Apache-2.0
"""Discovery in mode imex: IMEX channels, through which GPUs of several machines share memory.

Contract: one device for each channel, named by its number. The driver's user space is not read.
"""

from __future__ import annotations

import re

from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.gpu import nodes
from nvct.host.gpu.nodes import StatNode
from nvct.host.model import DeviceNode, Findings, Inventory, NamedDevice
from nvct.host.roots import Roots

FOLDER = "nvidia-caps-imex-channels"
CHANNEL = re.compile(r"channel(0|[1-9][0-9]*)")


def discover(roots: Roots, options: DiscoveryOptions | None = None) -> Inventory:
    """Return the inventory of a machine's IMEX channels.

    Raises:
        HostError: there is no channel.
    """
    findings = Findings()
    by_number = channels(roots, (options or DiscoveryOptions()).stat_node, findings)
    if not by_number:
        if FOLDER not in procfs.majors(roots):
            raise HostError(
                f"no IMEX channel: {roots.proc}/devices has no {FOLDER}",
                hint="load nvidia of a driver since 550 on machines with multi-node NVLink",
            )
        raise HostError(
            f"no IMEX channel in {roots.dev}/{FOLDER}",
            hint="load nvidia with NVreg_CreateImexChannel0=1, or make the nodes with mknod",
        )
    return Inventory(
        driver_version="",
        mode="imex",
        devices=tuple(NamedDevice(name=str(n), nodes=(by_number[n],)) for n in sorted(by_number)),
        left_out=tuple(findings.left_out.values()),
        warnings=tuple(findings.warnings),
    )


def channels(roots: Roots, stat_node: StatNode, findings: Findings) -> dict[int, DeviceNode]:
    """Return the nodes of the channels by channel number."""
    by_number = {}
    for name in procfs.list_directory(f"{roots.dev}/{FOLDER}"):
        match = CHANNEL.fullmatch(name)
        if not match:
            continue
        reason = f"IMEX channel {match[1]}"
        node = nodes.make_node(roots, stat_node, f"{FOLDER}/{name}", reason)
        if node is None:
            findings.leave_out(f"{roots.dev}/{FOLDER}/{name}", "it is no character device")
        else:
            by_number[int(match[1])] = node
    return by_number
