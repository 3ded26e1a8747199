# SPDX-License-Identifier: Apache-2.0
"""What a claim costs the scheduler: `python -m tests.kubernetes.scale NODES [KIND]`, as root.

Nodes without a kubelet offer 8 H100 each, as the driver would: `on-demand` or `existing` MIG
devices, or `whole` GPUs. Pods with one claim come one after another. The CPU time is the
scheduler's own; the wall clock has the API server's time, too, and that of everybody on the
machine.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from nvct.agent.dra import gather, slices
from nvct.agent.dra.devices import Machine, Offer
from nvct.agent.dra.mig_devices import offer
from nvct_sim import tree
from tests.engines import box
from tests.kubernetes import alone
from tests.kubernetes.api import PODS
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.dra import (
    API,
    ATTRIBUTES,
    CLAIMS,
    allocated,
    asks_for_claims,
    make_classes,
    make_node,
)
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import discovery

GPUS, CLAIMS_COUNT = 8, 10
KINDS = ("on-demand", "existing", "whole")
TIMEOUT_S = 300.0
LOOK_S = 0.01
SELECTORS = {
    "whole": ("gpu", "true"),
    "existing": ("mig", f"{ATTRIBUTES}.profile == '1g.10gb'"),
    "on-demand": ("mig", f"{ATTRIBUTES}.profile == '1g.10gb'"),
}


def offered(kind: str) -> Offer:
    """Return what a node with 8 H100 offers."""
    with tempfile.TemporaryDirectory(prefix="nvct-") as folder:
        node = tree.create("scale", "h100-mig", Path(folder), nodes="plain", native_cache=CACHE)
        try:
            with discovery(node) as found:
                machine = asyncio.run(gather.machine(found))
        finally:
            tree.destroy(node)
    return offer(_eight(machine, kind), {}, on_demand=kind == "on-demand")


def _eight(machine: Machine, kind: str) -> Machine:
    """Return a machine with copies of the simulated one's GPU in MIG mode, or out of it."""
    first = next(gpu for gpu in machine.inventory.gpus if gpu.mig_enabled)
    state = machine.mig[first.uuid]
    gpus = tuple(
        replace(
            first, minor=number, index=number, uuid=f"GPU-{number}", mig_enabled=kind != "whole",
            mig=first.mig if kind == "existing" else (),
        )
        for number in range(GPUS)
    )  # fmt: skip
    empty = state if kind == "existing" else replace(state, instances=())
    return replace(
        machine, inventory=replace(machine.inventory, gpus=gpus),
        mig={gpu.uuid: replace(empty, uuid=gpu.uuid) for gpu in gpus},
        **{
            name: {gpu.uuid: getattr(machine, name)[first.uuid] for gpu in gpus}
            for name in ("attributes", "properties")
        },
    )  # fmt: skip


def fill(cluster: Cluster, nodes: int, one: Offer) -> None:
    """Create the Nodes and their slices."""
    contents = slices.contents(one, "v1")

    def make(number: int) -> None:
        node = make_node(cluster, f"far-{number:04}")
        for manifest in slices.changes([], contents, node).apply:
            cluster.api.create(f"{API}/resourceslices", manifest)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(nodes)))


def cpu_s(cluster: Cluster) -> float:
    """Return the CPU time that the scheduler has used."""
    (process,) = cluster.box.call("pgrep", "-x", "kube-scheduler").stdout.split()
    fields = cluster.box.read(f"/proc/{process}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(cluster: Cluster, kind: str) -> tuple[list[float], list[float]]:
    """Return the seconds of wall clock and of the scheduler's CPU time of each claim."""
    device_class, expression = SELECTORS[kind]
    request = {
        "deviceClassName": f"{device_class}.nvidia.com",
        "selectors": [{"cel": {"expression": expression}}],
    }
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}
    took, used = [], []
    for number in range(CLAIMS_COUNT):
        name = f"claim-{number}"
        cluster.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})
        began, before = time.monotonic(), cpu_s(cluster)
        cluster.api.create(PODS, asks_for_claims(name).manifest(name))
        while not allocated(cluster, name):
            assert time.monotonic() < began + TIMEOUT_S, cluster.api.events(name)
            time.sleep(LOOK_S)
        took.append(time.monotonic() - began)
        time.sleep(0.5)  # its own bookkeeping after the claim
        used.append(cpu_s(cluster) - before)
    return took, used


def main(words: list[str]) -> int:
    """Print a line with the figures."""
    nodes, kind = int(words[0]), words[1] if len(words) > 1 else KINDS[0]
    one = offered(kind)
    box.GO.clear()  # a scheduler that collects no garbage is slower here
    with alone.running() as cluster:
        make_classes(cluster, extended="")
        fill(cluster, nodes, one)
        time.sleep(5)
        took, used = measure(cluster, kind)
    print(
        f"{kind}, {nodes} nodes, {len(one.devices)} devices a node: "
        f"{statistics.median(took):.3f} s a claim (median of {len(took)}), "
        f"{statistics.median(used):.3f} s of CPU; first {took[0]:.2f} s; load "
        f"{os.getloadavg()[0]:.0f}"
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
