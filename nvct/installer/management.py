# SPDX-License-Identifier: Apache-2.0
"""Creates the driver's control nodes and the CDI specification of management containers.

Both come from the driver as it is mounted here; the specification has the host's paths.
"""

from __future__ import annotations

import os

from nvct import paths
from nvct.cdi.make import generate, provenance, store
from nvct.cdi.types import Spec
from nvct.host import feature_modes
from nvct.host.device_nodes import create as device_nodes
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Findings, Inventory
from nvct.host.roots import Roots
from nvct.installer.request import Request
from nvct.kernel.calls import Kernel


def make_control_nodes(roots: Roots, kernel: Kernel) -> list[str]:
    """Create or correct the driver's control nodes; return sentences about them.

    Raises:
        HostError: no driver is loaded, or a node cannot be created.
    """
    findings = Findings()
    planned = device_nodes.plan_nodes(roots, ["control"], findings)
    device_nodes.make_nodes(planned, kernel)
    if planned.missing:
        raise device_nodes.missing_majors_error(planned.missing, roots)
    sentences = [device_nodes.describe(step) for step in planned.steps]
    return [*findings.warnings, *(sentence for sentence in sentences if sentence)]


def roots_of(request: Request, proc: str = "/proc", sys: str = "/sys") -> Roots:
    """Return the roots of the driver as paths of this process."""
    return Roots(
        driver_root=request.driver_root_mount,
        dev_root=request.dev_root_mount or None,
        proc=proc,
        sys=sys,
    )


def make_spec(request: Request, roots: Roots, options: DiscoveryOptions | None = None) -> str:
    """Write the specification; return its path.

    Raises:
        HostError: there is no driver or no node of it, or the file cannot be written.
    """
    inventory = feature_modes.discover_management(roots, options or DiscoveryOptions())
    spec, comment = provenance.attach(spec_of(request, roots, inventory), inventory)
    return store.save(spec, request.cdi_spec, None, comment)


def spec_of(request: Request, roots: Roots, inventory: Inventory) -> Spec:
    """Return the specification with the host's paths."""
    vendor, _, cls = request.cdi_kind.partition("/")
    options = generate.Options(
        vendor=vendor,
        cls=cls,
        hook_path=request.program(paths.HOOK_PROGRAM),
        host_roots=_moves(request, roots),
    )
    return generate.generate(inventory, options)


def _moves(request: Request, roots: Roots) -> list[tuple[str, str]]:
    """Return (root here, root of the host) pairs; the longer, more exact one first."""
    driver_root = os.path.normpath(roots.driver_root)
    pairs = {driver_root: request.driver_root}
    dev_root = os.path.normpath(roots.dev_root or "/")
    if dev_root != driver_root:
        pairs[dev_root] = request.dev_root or ("/" if dev_root == "/" else request.driver_root)
    moves = [(source, target) for source, target in pairs.items() if source != target]
    return sorted(moves, key=lambda pair: -len(pair[0]))
