# SPDX-License-Identifier: Apache-2.0
"""Events about GPUs: on the Node, and on the pods that have the GPU.

The health engine's notices are in the agent's /status. The kubelet tells which pods have a device.
An Event needs the uid of its pod, and so the right to get pods: without it, only the Node has
Events. Without the right to create Events, there are none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from nvct.agent.core.logs import Log, Problem
from nvct.agent.kubernetes.cluster import EVENT, POD, Cluster, ClusterError, Object
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubelet.pod_resources import Holding, PodResources

EVENTS_NAMESPACE = "default"
"""Where Kubernetes keeps the Events of objects without a namespace."""
RETRY_S = 10.0
"""Until the next attempt if the API server does not answer."""
EARLIER_S = 3000.0
"""What happened so long before the start is told, too: nobody knows whether it was. The API server
keeps Events for an hour, and refuses to create one again."""
CONFLICT = 409
REPLICA = "::"
"""Between a device's UUID and the number of a replica."""


class DeviceEvents:
    """Makes an Event of each notice, once.

    Attributes:
        problem: why the last Event is missing.
    """

    def __init__(self, node: str, socket: str, log: Log) -> None:
        """Do nothing yet; what happened long before becomes no Event.

        Args:
            socket: of the kubelet's service for pods' resources.
        """
        self.problem = Problem(log)
        self._node = node
        self._socket = socket
        self._since = time.time()
        self._told: int | None = None  # the number of the last notice
        self._retry_at = 0.0
        self._kubelet: PodResources | None = None

    async def tell(self, cluster: Cluster, document: Mapping[str, Any]) -> None:
        """Make the Events of the notices in /status that are new."""
        if time.monotonic() < self._retry_at:
            return
        notices = (document.get("health") or {}).get("notices")
        if notices is None:  # no task watches the health yet
            return
        if self._told is None:  # later, numbers alone decide: the clock may be set back
            since = self._since - EARLIER_S
            old = [notice["number"] for notice in notices if notice["at"] < since]
            self._told = max(old, default=0)
        for notice in notices:
            if notice["number"] <= self._told:
                continue
            try:
                await self._tell(cluster, notice)
            except HostError as error:
                self._complain(error)
                if not getattr(error, "status", 0):
                    self._retry_at = time.monotonic() + RETRY_S
                    return
            self._told = notice["number"]

    async def close(self) -> None:
        """End the connection to the kubelet."""
        if self._kubelet is not None:
            await self._kubelet.close()
            self._kubelet = None

    async def _tell(self, cluster: Cluster, notice: Mapping[str, Any]) -> None:
        await _create(cluster, event(self._node, node_reference(self._node), notice))
        if not notice["is_warning"]:
            return
        for namespace, name in sorted(await self._pods(notice["devices"])):
            pod = await cluster.find(POD, name, namespace)
            if pod is None:
                continue
            uid = pod["metadata"]["uid"]
            involved = {
                "apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace,
                "uid": uid,
            }  # fmt: skip
            await _create(cluster, event(self._node, involved, notice))

    async def _pods(self, devices: list[str]) -> set[tuple[str, str]]:
        """Return namespace and name of each pod that has one of some devices."""
        if not os.path.exists(self._socket):  # noqa: ASYNC240 - a stat of a local file
            return set()
        if self._kubelet is None:
            from nvct.agent.kubelet.pod_resources import PodResources  # loads gRPC

            self._kubelet = PodResources(self._socket)
        try:
            holdings = await self._kubelet.holdings()
        except HostError as error:
            self._complain(error)
            return set()
        return {(h.namespace, h.pod) for h in holdings if _has(h, devices)}

    def _complain(self, error: HostError) -> None:
        self.problem.tell(error, "an Event about a GPU is missing: ")


async def _create(cluster: Cluster, manifest: Object) -> None:
    """Create an Event that may be there from before this process began."""
    try:
        await cluster.create(EVENT, manifest)
    except ClusterError as error:
        if error.status != CONFLICT:
            raise


def _has(holding: Holding, devices: list[str]) -> bool:
    return any(id_.partition(REPLICA)[0] in devices for id_ in holding.devices)


def node_reference(node: str) -> Object:
    """Return what names a Node in an Event; the kubelet, too, gives the name as uid."""
    return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}


def event(node: str, involved: Object, notice: Mapping[str, Any]) -> Object:
    """Return an Event of a Node or pod, as `kubectl describe` finds it.

    Args:
        node: name of the Node, which has the device.
        involved: the object that the Event is about.
        notice: with reason, message, is_warning; of a device, with its number and moment.
    """
    now = datetime.now(timezone.utc)
    shown, stamp = timestamp(now), f"{int(now.timestamp() * 1e9):x}"
    if "number" in notice:  # the same in the next process
        stamp = f"{int(notice['at'] * 1000):x}{notice['number']:05x}"
    return {
        "metadata": {
            "name": f"{involved['name']}.{stamp}",
            "namespace": involved.get("namespace", EVENTS_NAMESPACE),
        },
        "involvedObject": involved,
        "reason": notice["reason"],
        "message": notice["message"],
        "type": "Warning" if notice["is_warning"] else "Normal",
        "source": {"component": "nvct", "host": node},
        "firstTimestamp": shown,
        "lastTimestamp": shown,
        "count": 1,
    }


def timestamp(moment: datetime | None = None) -> str:
    """Return a moment, or now, as the API has it."""
    return f"{moment or datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
