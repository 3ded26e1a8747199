# SPDX-License-Identifier: Apache-2.0
"""Makes the links in the host's /dev/char, after `nvct validate driver` found a driver."""

from __future__ import annotations

import os

from nvct.host import dev_char, device_nodes
from nvct.host.model import Findings
from nvct.host.roots import Roots
from nvct.kernel.calls import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.doctor.driver import Driver, Places

DEV_CHAR = "/host-dev-char"


def make(found: Driver, places: Places, say: Callable[[str], None]) -> None:
    """Make the links; load modules and make nodes if needed.

    Raises:
        HostError: the kernel has no major for a node.
    """
    folder = DEV_CHAR if os.path.isdir(DEV_CHAR) else f"{places.host_here.rstrip('/')}/dev/char"
    here = places.host_here if found.is_host else places.driver_here
    if found.is_host or found.dev_root == found.root:
        _load(here, places, say)
    roots = Roots(driver_root=here, dev_root=found.dev_root, sys=places.sys)
    findings = Findings()
    nodes = device_nodes.plan_nodes(roots, ["control"], findings)
    device_nodes.make_nodes(nodes, KERNEL)
    planned = dev_char.plan_links(roots, folder, findings, create_all=True)
    dev_char.update_links(planned, folder, KERNEL)
    for sentence in (*findings.warnings, *(dev_char.describe(step) for step in planned.steps)):
        if sentence:
            say(sentence)
    if planned.missing:
        raise device_nodes.missing_majors_error(planned.missing, roots)


def _load(root: str, places: Places, say: Callable[[str], None]) -> None:
    """Load the driver's modules, unless loaded: nvidia-smi may have skipped GPU init."""
    if not os.path.exists(f"{places.sys}/module/nvidia"):
        for warning in device_nodes.load(root, device_nodes.run):
            say(f"warning: {warning}")
