# SPDX-License-Identifier: Apache-2.0
"""Finds one Node for the tasks that write to it; watches it for those that obey its labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from nvct.agent.core.waiting import Backoff
from nvct.agent.kubernetes import node_news
from nvct.agent.kubernetes.cluster import NODE, NOT_FOUND, Cluster, ClusterError, Object
from nvct.errors import NvctError


async def find_node(cluster: Cluster, name: str) -> Object:
    """Return a Node; ClusterError if it does not exist, or the API server does not answer."""
    node = await cluster.find(NODE, name)
    if node is None:
        raise no_node(name)
    return node


def no_node(name: str) -> ClusterError:
    """Return the error for a Node that the cluster does not have."""
    return ClusterError(
        f"the cluster has no Node {name}",
        hint="set NODE_NAME to the Node's name, in a pod from the field spec.nodeName",
        status=NOT_FOUND,
    )


async def follow(
    cluster: Cluster,
    name: str,
    see: Callable[[Object | None], None],
    complain: Callable[[NvctError], None],
) -> NoReturn:
    """Report a Node as it is now, and after each change, until canceled.

    `see`: takes the Node, None if it is deleted; an error that it raises is reported, too.
    `complain`: takes the reason why the Node cannot be watched now.
    """
    backoff = Backoff(30.0, spread=(1, 2))
    while True:
        try:
            async for node in cluster.changes(NODE, name):
                node_news.tell(name, node)
                see(node)
                backoff.reset()
            continue
        except NvctError as error:
            complain(error)
        await asyncio.sleep(backoff.next_s())
