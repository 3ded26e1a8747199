# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of a driver, for a generated spec and for the plan that is made of it.

Contract: NVML is not called, and a check at every create takes microseconds. Files of procfs are
compared by content, because their times change without a reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nvct.container.plan import fingerprints
from nvct.errors import HostError
from nvct.host import procfs
from nvct.host.driver import libraries
from nvct.host.gpu import mig
from nvct.host.gpu.nodes import CONTROL_NODES
from nvct.host.model import Inventory
from nvct.host.roots import Roots

ATTEMPTS = 3


def driver_fingerprints(
    roots: Roots, inventory: Inventory, *, now_ns: int | None = None
) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints that hold as long as a spec of this inventory fits the machine.

    They are taken now, which may be later than the inventory; see `discover`.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    taken = kernel_fingerprints(roots)
    for stem in ("libcuda.so", "libnvidia-ml.so"):
        library = libraries.host_path_of(inventory.files, stem)
        if library:
            taken.append(fingerprints.take_file(library, now_ns))
            break
    return taken


def kernel_fingerprints(roots: Roots) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints without an inventory: loaded driver, GPUs, nodes, MIG instances."""
    taken = [
        fingerprints.take("text", f"{roots.proc}/driver/nvidia/version"),
        fingerprints.take("text", f"{roots.proc}/sys/kernel/random/boot_id"),
        fingerprints.take("text", f"{roots.proc}/devices"),
        fingerprints.take("list", f"{roots.proc}/driver/nvidia/gpus"),
    ]
    # A control node that is made later, as nvidia-uvm's at its first use, belongs in the spec.
    taken += [fingerprints.take("node", f"{roots.dev}/{node[0]}") for node in CONTROL_NODES]
    for gpu in procfs.gpus(roots):
        if gpu.minor is not None:
            taken += gpu_fingerprints(roots, gpu.minor)
    return taken


def gpu_fingerprints(roots: Roots, minor: int) -> list[fingerprints.Fingerprint]:
    """Return the fingerprints of one GPU: its node and its MIG instances."""
    directory = mig.capability_directory(roots, minor)
    instances = mig.instances(roots, minor)
    return [
        fingerprints.take("node", f"{roots.dev}/nvidia{minor}"),
        fingerprints.take("list", directory),
        *(fingerprints.take("list", f"{directory}/gi{gi}") for gi in instances),
    ]


def discover(
    roots: Roots, inventory_of: Callable[[], Inventory], *, now_ns: int | None = None
) -> tuple[Inventory, list[fingerprints.Fingerprint]]:
    """Return an inventory, and fingerprints that held during the whole discovery.

    Raises:
        HostError: the machine changed during each of ATTEMPTS discoveries, or one of them failed.
    """
    for _ in range(ATTEMPTS):
        before = kernel_fingerprints(roots)
        inventory = inventory_of()
        after = driver_fingerprints(roots, inventory, now_ns=now_ns)
        if after[: len(before)] == before:
            return inventory, after
    raise HostError(
        f"GPUs or MIG devices changed {ATTEMPTS} times while they were listed",
        hint="try again when whatever changes them is done",
    )
