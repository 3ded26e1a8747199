# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct cluster. They ask the API server only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

import click

from nvct.cli import screen
from nvct.cli.options import format_option, say, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from nvct.agent.kubernetes import fleet
    from nvct.agent.kubernetes.cluster import Cluster

HEADER = ("NODE", "GPUS", "DRIVER", "PRODUCT", "AGENT", "READY", "REASON")
DOMAIN, VENDOR = "nvidia.com/", "NVIDIA-"
"""Left out of the table, for a terminal's width; --json has them."""
KUBECONFIG = click.option(
    "--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE",
    help="Access to the cluster.  [default: this pod's service account, or ~/.kube/config]",
)  # fmt: skip


@click.group()
def cluster() -> None:
    """Show the GPU nodes of a cluster, and wait for a DaemonSet."""


@cluster.command()
@click.argument("daemonset")
@click.option(
    "--namespace", "-n", default="default", show_default=True, help="Namespace of the DaemonSet."
)
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=300.0,
              show_default=True, help="How long to wait, in seconds.")  # fmt: skip
@KUBECONFIG
def wait(*, daemonset: str, namespace: str, timeout_s: float, kubeconfig: str) -> None:
    """Wait until a DaemonSet is ready on all nodes; print messages of its init containers.

    Example: nvct cluster wait nvct-uninstall --namespace nvct
    """
    from nvct.agent.kubernetes import fleet

    async def run() -> None:
        connected = connect(kubeconfig)
        try:
            await fleet.wait(connected, daemonset, namespace, timeout_s, say)
        finally:
            await connected.close()

    asyncio.run(run())


@cluster.command()
@click.option(
    "--namespace", "-n", default="nvct", show_default=True, help="Namespace of the agent's pods."
)
@format_option("table", aliases=("--output", "-o"))
@KUBECONFIG
def status(*, namespace: str, form: str, kubeconfig: str) -> None:
    """Show the GPU nodes: the GPUs they offer, their driver, and why one is not ready.

    Example: nvct cluster status --kubeconfig ~/.kube/config
    """
    from nvct.agent.kubernetes import fleet

    async def run() -> list[fleet.GpuNode]:
        async with as_admin(kubeconfig) as connected:
            return await fleet.nodes(connected, namespace)

    nodes = asyncio.run(run())
    if form == "json":
        click.echo(json.dumps([node._asdict() for node in nodes], indent=2))
        return
    if not nodes:
        say("no node has a GPU, and no pod of the agent runs: is --namespace the agent's?")
    for line in table(nodes, screen.columns()) if nodes else ():
        tell(line)


def table(nodes: Sequence[fleet.GpuNode], width: int) -> Iterator[str]:
    """Yield the lines about nodes; a resource of nvidia.com is named without its domain."""
    rows: list[tuple[str, ...]] = [HEADER]
    for node in nodes:
        counts = node.gpus.items()
        gpus = ",".join(f"{name.removeprefix(DOMAIN)}={count}" for name, count in counts)
        product = node.product.removeprefix(VENDOR)
        row = (node.name, gpus, node.driver, product, node.agent, node.ready, node.reason)
        rows.append(tuple(cell or "-" for cell in row[:-1]) + row[-1:])
    yield from screen.table(rows, width)


@contextlib.asynccontextmanager
async def as_admin(kubeconfig: str) -> AsyncIterator[Cluster]:
    """Connect as `connect` does, for what an admin asks: the agent's account may not.

    Raises:
        ClusterError: the API server refuses, or does not answer.
    """
    from nvct.agent.kubernetes.cluster import FORBIDDEN, ClusterError

    connected = connect(kubeconfig)
    try:
        yield connected
    except ClusterError as error:
        if error.status != FORBIDDEN:
            raise
        hint = "run it where kubectl runs, with an admin's kubeconfig (--kubeconfig)"
        raise ClusterError(error.message, hint=hint, status=error.status) from error
    finally:
        await connected.close()


def connect(kubeconfig: str) -> Cluster:
    """Return the cluster of a kubeconfig, the default being that of kubectl.

    Raises:
        ClusterError: there is none, or it is malformed.
    """
    from nvct.agent.kubernetes import cluster as clusters

    usual = os.path.expanduser("~/.kube/config")
    if not kubeconfig and "KUBERNETES_SERVICE_HOST" not in os.environ and os.path.exists(usual):
        kubeconfig = usual
    return clusters.connect(kubeconfig, os.environ)
