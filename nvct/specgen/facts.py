# SPDX-License-Identifier: Apache-2.0
"""The cheap facts about a driver that a generated spec, and the plan made of it, stand on.

Contract: they are read, not asked of NVML, and cost microseconds to check on every create. Files
of procfs are compared by content: their times move by themselves.
"""

from __future__ import annotations

import time

from nvct.host import libraries, mig
from nvct.host.nodes import CONTROL_NODES
from nvct.plan import facts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.model import Gpu, Inventory
    from nvct.host.roots import Roots


def driver_facts(
    roots: Roots, inventory: Inventory, *, now_ns: int | None = None
) -> list[facts.Fact]:
    """Return what must stay true for a spec of this inventory to describe the machine.

    Take them before `discover` reads, or compare again after it: a change in between would be
    missed otherwise.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    found = [
        facts.take("text", f"{roots.proc}/driver/nvidia/version"),
        facts.take("text", f"{roots.proc}/sys/kernel/random/boot_id"),
        facts.take("text", f"{roots.proc}/devices"),
        facts.take("list", f"{roots.proc}/driver/nvidia/gpus"),
    ]
    # A control node that appears later, nvidia-uvm's at its first use, has to get into the spec.
    found += [facts.take("rdev", f"{roots.dev}/{node[0]}") for node in CONTROL_NODES]
    for stem in ("libcuda.so", "libnvidia-ml.so"):
        library = libraries.host_path_of(inventory.files, stem)
        if library:
            found.append(facts.take_file(library, now_ns))
            break
    for gpu in inventory.gpus:
        found += gpu_facts(roots, gpu)
    return found


def gpu_facts(roots: Roots, gpu: Gpu) -> list[facts.Fact]:
    """Return the facts of one GPU: its node and which MIG instances it has."""
    directory = mig.capability_directory(roots, gpu.minor)
    found = [
        facts.take("rdev", f"{roots.dev}/nvidia{gpu.minor}"),
        facts.take("list", directory),
    ]
    instances = mig.instances(roots, gpu.minor)
    found += [facts.take("list", f"{directory}/gi{gi}") for gi in instances]
    return found
