# SPDX-License-Identifier: Apache-2.0
"""Removes a taint from this agent's Node once pods can have its GPUs.

A new node is ready before its GPUs are. If its pool gives it a taint, pods that ask for GPUs wait
and are not refused, and an autoscaler sees that the node is not ready for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial

from nvct.agent.core.logs import Log
from nvct.agent.core.waiting import Backoff
from nvct.agent.device_plugin.settings import Settings
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubernetes.cluster import Cluster

MANAGER = "nvct-device-plugin"
POLL_S = 1.0


class StartupTaint:
    """The taint of one key; `reason` says why it is still there, "" if it is removed."""

    def __init__(self, key: str, node: str, connect: Callable[[], Cluster], log: Log) -> None:
        self.key = key
        self.node = node
        self.reason = "the kubelet has not read the list of devices yet"
        self._connect = connect
        self._log = log
        self._cluster: Cluster | None = None

    async def run(self, listed: Callable[[], Collection[str]]) -> None:
        """Remove the taint, then do nothing until canceled.

        `listed`: returns the names of the resources that the kubelet has read; [] while it has not
        read all.
        """
        try:
            await self._until_removed(listed)
        finally:
            if self._cluster is not None:
                await self._cluster.close()
        await asyncio.Event().wait()

    async def _until_removed(self, listed: Callable[[], Collection[str]]) -> None:
        backoff = Backoff(30.0)
        while self.reason:
            delay_s = POLL_S
            names = listed()
            try:
                if names:
                    self.reason = await self._remove(names)
                    backoff.reset()
            except HostError as error:
                if self.reason != error.message:
                    self._log.warning(f"taint {self.key} of node {self.node}: {error.message}")
                self.reason = error.message
                delay_s = backoff.next_s()
            if self.reason:
                await asyncio.sleep(delay_s)

    async def _remove(self, names: Collection[str]) -> str:
        """Remove the taint if the Node has the resources; return why it is still there, or ""."""
        from nvct.agent.kubernetes.cluster import CONFLICT, NODE, ClusterError  # 12 MB

        cluster = self._cluster = self._cluster or self._connect()
        node = await cluster.find(NODE, self.node)
        if node is None:
            raise HostError(f"the cluster has no node {self.node}: set NODE_NAME to its name")
        allocatable = node.get("status", {}).get("allocatable", {})
        missing = [name for name in names if allocatable.get(name, "0") == "0"]
        if missing:
            return f"the Node has no allocatable {missing[0]} yet"
        taints = node.get("spec", {}).get("taints") or []
        kept = [taint for taint in taints if taint.get("key") != self.key]
        if len(kept) == len(taints):
            return ""
        version = node["metadata"]["resourceVersion"]
        metadata = {"name": self.node, "resourceVersion": version}
        try:
            await cluster.merge(NODE, {"metadata": metadata, "spec": {"taints": kept}}, MANAGER)
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
            return "the Node has changed meanwhile"
        self._log.info(f"removed taint {self.key} of node {self.node}")
        return ""


def of_settings(
    settings: Settings, connect: Callable[[str], Cluster], log: Log
) -> StartupTaint | None:
    """Return the taint that the settings name, None if there is none."""
    if not settings.startup_taint:
        return None
    connect_by = partial(connect, settings.kubeconfig)
    return StartupTaint(settings.startup_taint, settings.node, connect_by, log)
