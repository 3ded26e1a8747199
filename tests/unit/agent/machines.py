# SPDX-License-Identifier: Apache-2.0
"""Simulated nodes as files, and the agent's inventory of them: nothing is attached."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.inventory import Inventory
from nvct.agent.nvml.client import NvmlClient
from nvct.host.gpu.nodes import named_nodes
from nvct.host.roots import Roots
from nvct_sim.tree import KMSG, Node

REPOSITORY = Path(__file__).parents[3]
SERVE = """
import socket
from nvct.agent.nvml import supervisor as nvml_supervisor
nvml_supervisor.serve(socket.socket(fileno={fd}))
"""
TIMEOUT_S = 20.0


def roots_of(node: Node) -> Roots:
    folders = {"proc": node.proc, "sys": node.sys, "etc": node.etc, "run": node.tree / "run"}
    return Roots(
        driver_root=str(node.driver_root),
        dev_root=str(node.tree),
        **{name: str(path) for name, path in folders.items()},
    )


class Supervisor:
    """A supervisor in a process of its own: a test with gRPC has threads, and must not fork."""

    def __init__(self, **env: str) -> None:
        self.connection, theirs = socket.socketpair()
        words = [sys.executable, "-c", SERVE.format(fd=theirs.fileno())]
        self.process = subprocess.Popen(
            words, pass_fds=[theirs.fileno()], env={**os.environ, **env}, cwd=REPOSITORY
        )
        theirs.close()

    def ended(self) -> int:
        """Wait for its end, and return its exit status."""
        return self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def client_of(node: Node) -> Iterator[NvmlClient]:
    """Yield a client of a node's NVML, which runs in another process."""
    supervisor = Supervisor(NVCT_SIM_DEV=str(node.dev), NVCT_KMSG=str(node.tree / KMSG))
    library = str(node.library_dir / f"libnvidia-ml.so.{node.installed}")
    client = NvmlClient(supervisor.connection, library)
    try:
        yield client
    finally:
        client.disconnect()
        assert supervisor.ended() == 0


@contextlib.contextmanager
def discovery(node: Node) -> Iterator[Discovery]:
    """Yield the discovery of a node, whose NVML runs in another process."""
    supervisor = Supervisor(NVCT_SIM_DEV=str(node.dev))
    client = NvmlClient(supervisor.connection)
    roots = roots_of(node)
    try:
        yield Discovery(roots, client, named_nodes(roots))
    finally:
        client.disconnect()
        assert supervisor.ended() == 0


def inventory_of(node: Node) -> Inventory:
    with discovery(node) as machine:
        return asyncio.run(machine.inventory())
