# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes as files, and the agent's inventory of them: nothing is attached."""

from __future__ import annotations

import asyncio
import contextlib
import os

from nvct.agent import nvml_supervisor
from nvct.agent.discovery import Discovery
from nvct.agent.nvml_client import NvmlClient
from nvct.host.gpu.nodes import named_nodes
from nvct.host.roots import Roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvct.agent.inventory import Inventory
    from nvct.sim.tree import Node

SIM_DEV = "NVCT_SIM_DEV"


def roots_of(node: Node) -> Roots:
    folders = {"proc": node.proc, "sys": node.sys, "etc": node.etc, "run": node.tree / "run"}
    return Roots(
        driver_root=str(node.driver_root),
        dev_root=str(node.tree),
        **{name: str(path) for name, path in folders.items()},
    )


@contextlib.contextmanager
def discovery(node: Node) -> Iterator[Discovery]:
    """Yield the discovery of a node, whose NVML runs in a process of its own."""
    before = os.environ.get(SIM_DEV)
    os.environ[SIM_DEV] = str(node.dev)
    try:
        supervisor = nvml_supervisor.start()
    finally:
        if before is None:
            del os.environ[SIM_DEV]
        else:
            os.environ[SIM_DEV] = before
    client = NvmlClient(supervisor)
    roots = roots_of(node)
    try:
        yield Discovery(roots, client, named_nodes(roots))
    finally:
        client.disconnect()
        assert supervisor.wait(10)


def inventory_of(node: Node) -> Inventory:
    with discovery(node) as machine:
        return asyncio.run(machine.inventory())
