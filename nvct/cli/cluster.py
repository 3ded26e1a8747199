# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct cluster. They ask the API server only."""

from __future__ import annotations

import asyncio
import os

import click

from nvct.cli.options import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.cluster import Cluster

KUBECONFIG = click.option(
    "--kubeconfig", envvar="KUBECONFIG", default="", metavar="FILE",
    help="Access to the cluster.  [default: this pod's service account]",
)  # fmt: skip


@click.group()
def cluster() -> None:
    """Show the cluster, and wait for it."""


@cluster.command()
@click.argument("daemonset")
@click.option("--namespace", "-n", default="default", show_default=True, help="Of the DaemonSet.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=300.0,
              show_default=True, help="Seconds.")  # fmt: skip
@KUBECONFIG
def wait(*, daemonset: str, namespace: str, timeout_s: float, kubeconfig: str) -> None:
    """Wait until a DaemonSet is ready on all its nodes; print what its init containers said.

    Example: nvct cluster wait nvct-uninstall --namespace nvct
    """
    from nvct.agent import rollout

    async def run() -> None:
        connected = _connect(kubeconfig)
        try:
            await rollout.wait(connected, daemonset, namespace, timeout_s, say)
        finally:
            await connected.close()

    asyncio.run(run())


def _connect(kubeconfig: str) -> Cluster:
    from nvct.agent import cluster as clusters

    return clusters.connect(kubeconfig, os.environ)
