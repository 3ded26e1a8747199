# SPDX-License-Identifier: Apache-2.0
"""Waits until a DaemonSet is ready on all its nodes, and prints messages of its init containers.

An uninstallation waits for its nodes this way: the init containers do its work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from nvct.agent.kubernetes.cluster import POD, Cluster, ClusterError, Kind, Object
from nvct.errors import HostError

DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets", is_namespaced=True)
POLL_S = 1.0
SERVER_ERROR = 500


class Progress(NamedTuple):
    """How many nodes have a ready pod of the latest template, of how many."""

    ready: int
    desired: int
    is_known: bool

    @property
    def is_done(self) -> bool:
        """Whether all have."""
        return self.is_known and self.ready >= self.desired


def progress(daemon_set: Object) -> Progress:
    """Return the progress that the status of a DaemonSet shows."""
    status = daemon_set.get("status", {})
    ready = min(status.get("numberReady", 0), status.get("updatedNumberScheduled", 0))
    generation = daemon_set["metadata"].get("generation", 1)
    is_known = status.get("observedGeneration", 0) >= generation
    return Progress(ready, status.get("desiredNumberScheduled", 0), is_known)


async def wait(
    cluster: Cluster, name: str, namespace: str, timeout_s: float, say: Callable[[str], None]
) -> None:
    """Wait until a DaemonSet is ready on all nodes, then print messages of its init containers.

    An API server that does not answer is asked again.

    Raises:
        ClusterError: there is no such DaemonSet, or it may not be read.
        HostError: it is not ready in time.
    """
    end = time.monotonic() + timeout_s
    last: Progress | None = None
    while True:
        found = await _find(cluster, name, namespace)
        if found is not None and (current := progress(found)) != last:
            last = current
            say(f"{last.ready} of {last.desired} nodes are done" if last.is_known else "waiting")
        if found is not None and last is not None and last.is_done:
            break
        if time.monotonic() > end:
            nodes = f"{last.desired - last.ready} of {last.desired} nodes" if last else "the nodes"
            raise HostError(
                f"{nodes} are not done after {timeout_s:g} s",
                hint=f"kubectl --namespace {namespace} describe pods shows why",
            )
        await asyncio.sleep(POLL_S)
    for sentence in await messages(cluster, found, namespace):
        say(sentence)


async def messages(cluster: Cluster, daemon_set: Object, namespace: str) -> list[str]:
    """Return the last messages of the init containers of a DaemonSet's pods, by node.

    Raises:
        ClusterError: the pods may not be listed.
    """
    labels = daemon_set["spec"]["selector"]["matchLabels"]
    sentences = []
    for pod in await cluster.find_all(POD, namespace, labels):
        for status in pod["status"].get("initContainerStatuses", ()):
            text = status.get("state", {}).get("terminated", {}).get("message", "")
            sentences += [f"{pod['spec']['nodeName']}: {line}" for line in text.splitlines()]
    return sorted(sentences)


async def _find(cluster: Cluster, name: str, namespace: str) -> Object | None:
    """Return the DaemonSet, None if the API server does not answer."""
    try:
        found = await cluster.find(DAEMON_SET, name, namespace)
    except ClusterError as error:
        if error.status and error.status < SERVER_ERROR:
            raise
        return None
    if found is None:
        raise ClusterError(f"namespace {namespace} has no DaemonSet {name}")
    return found
