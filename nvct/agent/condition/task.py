# SPDX-License-Identifier: Apache-2.0
"""The task `condition`: writes the condition of this Node from the agent's /status.

The condition is written when it changes, and every ten minutes to show that the agent runs. Each
change of its status or reason is also an Event of the Node. So is each change of a GPU's health,
with another Event for each pod that has the GPU: /status has the health engine's notices, and the
kubelet says which pods have a device. An Event of a pod needs the pod's uid, and so the right to
get pods: without it, only the Node has Events. Without the right to create Events, there are none.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from nvct.agent.condition import condition
from nvct.agent.condition.condition import Condition
from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log, Problem
from nvct.agent.core.task import Task
from nvct.agent.core.waiting import Backoff, tick
from nvct.agent.kubelet.pod_resources import SOCKET, PodResources, uuid_of
from nvct.agent.kubernetes import node_news
from nvct.agent.kubernetes.cluster import CONFLICT, EVENT, NODE, POD, Cluster, ClusterError, Object
from nvct.agent.kubernetes.node_watch import find_node
from nvct.agent.task_table import OFFERING
from nvct.errors import HostError

LOOK_S = 1.0  # Between two looks at /status
SETTLE_S = 3.0
"""How long a fault must last to be written: a restart of the kubelet is not a fault."""
START_S = 10.0
"""The same at the start: an older agent may offer devices until this one does."""
HEARTBEAT_S = 600.0
REPAIR_S = 60.0
"""How long after a write the condition is written again if somebody has removed it."""
EVENTS_NAMESPACE = "default"  # Where Kubernetes keeps the Events of objects without a namespace
RETRY_S = 10.0  # Until the next attempt to make an Event if the API server does not answer
EARLIER_S = 3000.0
"""Notices from so long before the start become Events, too, because they may not have been
reported. The API server keeps Events for an hour, and refuses to create the same one again."""
POD_EVENTS_ENV = "NVCT_POD_EVENTS"
"""`false`: no Events of pods, even if the account may get pods because other tasks need that."""


def make(context: Context) -> NodeCondition:
    """Return the task; KUBECONFIG, NODE_NAME and POD_EVENTS_ENV are its only settings."""
    return NodeCondition(
        context.connect, context.node, context.status, context.journal,
        of_pods=context.env.get(POD_EVENTS_ENV, "") != "false",
    )  # fmt: skip


class NodeCondition(Task):
    """The task of the agent that writes the condition of its Node."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        node: str,
        status: Callable[[], dict[str, Any]],
        log: Log,
        *,
        pod_resources: str = SOCKET,
        of_pods: bool = True,
    ) -> None:
        super().__init__(log)
        self._connect = connect
        self._node = node
        self._status = status
        self._written: Condition | None = None
        self._written_at = 0.0
        self._is_lost = False  # whether a watch has shown the Node without the condition
        self._fault_since: float | None = None
        self._due = 0.0
        self._backoff = Backoff(spread=(1.0, 1.5))
        self._events = DeviceEvents(node, pod_resources, log, of_pods=of_pods)

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the condition, as JSON data."""
        written = self._written
        return [
            {
                "condition": condition.TYPE,
                "status": written.status if written else "",
                "reason": written.reason if written else "",
                "problem": self.problem.text or self._events.problem.text,
            }
        ]

    async def run(self) -> None:
        """Write the condition until canceled."""
        cluster = self._connect()
        stop_listening = node_news.listen(self._node, self._see)
        try:
            while True:
                document = self._status()
                current = self._settled(condition.of(document, OFFERING))
                if self._is_due(current):
                    await self._try_write(cluster, current)
                await self._events.tell(cluster, document)
                await asyncio.sleep(tick(LOOK_S))
        finally:
            stop_listening()
            await self._events.close()
            await cluster.close()

    def _see(self, node: Object | None) -> None:
        """Note whether somebody has removed the condition, or has recreated the Node."""
        self._is_lost = node is not None and condition.find(node) is None

    def _settled(self, current: Condition | None) -> Condition | None:
        """Return the condition to write; the written one stays until a new fault has lasted."""
        if current is None or current.is_ready:
            self._fault_since = None
            return current
        now = time.monotonic()
        self._fault_since = self._fault_since or now
        lasts_s = SETTLE_S if self._written else START_S
        return current if now - self._fault_since >= lasts_s else self._written

    def _is_due(self, current: Condition | None) -> bool:
        is_late = time.monotonic() >= self._due
        is_old = time.monotonic() - self._written_at >= REPAIR_S  # before, the watch may be late
        is_changed = current != self._written or (current is not None and self._is_lost and is_old)
        return (is_late or not self._backoff.failures) and (
            is_changed or (is_late and current is not None)
        )

    async def _try_write(self, cluster: Cluster, current: Condition | None) -> None:
        """Write the condition, or log why that fails; set the time of the next write."""
        try:
            await self._write(cluster, current)
        except ClusterError as error:
            delay_s = self._backoff.next_s()
            self.problem.tell(error)
        else:
            # Nodes do not all write at once.
            delay_s = HEARTBEAT_S * random.uniform(0.8, 1.2)  # noqa: S311  no secret
            self._backoff.reset()
            self.problem.clear()
            self._written = current
            self._written_at, self._is_lost = time.monotonic(), False
        self._due = time.monotonic() + delay_s

    async def _write(self, cluster: Cluster, current: Condition | None) -> None:
        """Apply the condition; make an Event if its reason has changed."""
        node = await find_node(cluster, self._node)
        before, now = condition.find(node), timestamp()
        conditions = []
        if current is not None:
            is_same = before is not None and before["status"] == current.status
            since = before.get("lastTransitionTime", now) if before and is_same else now
            conditions = [current.to_dict(since, now)]
        # With the uid, the apply cannot create a Node that has just been deleted.
        metadata = {"name": self._node, "uid": node["metadata"]["uid"]}
        manifest = {"metadata": metadata, "status": {"conditions": conditions}}
        await cluster.apply(NODE, manifest, condition.MANAGER, part="status")
        if current and (before is None or before.get("reason") != current.reason):
            self._log.info(f"{condition.TYPE} is {current.status}: {current.message}")
            await self._tell(cluster, current)

    async def _tell(self, cluster: Cluster, current: Condition) -> None:
        """Make an Event; a failure is only logged, because the condition says the same."""
        try:
            await cluster.create(EVENT, event(self._node, current))
        except ClusterError as error:
            self.problem.tell(error)


def event(node: str, current: Condition) -> Object:
    """Return an Event of a Node's condition, in the form that `kubectl describe node` finds."""
    notice = {
        "reason": current.reason,
        "message": current.message,
        "is_warning": not current.is_ready and not current.is_planned,
    }
    return device_event(node, notice)


class DeviceEvents:
    """Makes one Event for each notice; `of_pods`: also for the pods that a warning concerns."""

    def __init__(self, node: str, socket: str, log: Log, *, of_pods: bool = True) -> None:
        self.problem = Problem(log.warning)
        self._of_pods = of_pods
        self._node = node
        self._since = time.time()
        self._told: int | None = None  # number of the last notice that has its Events
        self._retry_at = 0.0
        self._kubelet = PodResources(socket)

    async def tell(self, cluster: Cluster, document: Mapping[str, Any]) -> None:
        """Make Events of the new notices in /status."""
        if time.monotonic() < self._retry_at:
            return
        notices = (document.get("health") or {}).get("notices")
        if notices is None:  # no task watches the health yet
            return
        if self._told is None:  # only once: later the numbers decide, as clocks may be set back
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
        await self._kubelet.close()

    async def _tell(self, cluster: Cluster, notice: Mapping[str, Any]) -> None:
        await _create(cluster, device_event(self._node, notice))
        if not (notice["is_warning"] and self._of_pods):
            return
        for namespace, name in sorted(await self._pods(notice["devices"])):
            pod = await cluster.find(POD, name, namespace)
            if pod is None:
                continue
            uid = pod["metadata"]["uid"]
            involved = {"kind": "Pod", "name": name, "namespace": namespace, "uid": uid}
            await _create(cluster, device_event(self._node, notice, involved))

    async def _pods(self, devices: list[str]) -> set[tuple[str, str]]:
        """Return namespace and name of each pod that has one of these devices."""
        if not self._kubelet.is_there():
            return set()
        try:
            holdings = await self._kubelet.holdings()
        except HostError as error:
            self._complain(error)
            return set()
        return {
            (h.namespace, h.pod) for h in holdings if any(uuid_of(i) in devices for i in h.devices)
        }

    def _complain(self, error: HostError) -> None:
        self.problem.tell(error, "an Event about a GPU is missing: ")


async def _create(cluster: Cluster, manifest: Object) -> None:
    """Create an Event; an earlier process may have created the same one."""
    try:
        await cluster.create(EVENT, manifest)
    except ClusterError as error:
        if error.status != CONFLICT:
            raise


def device_event(node: str, notice: Mapping[str, Any], involved: Object | None = None) -> Object:
    """Return an Event of a Node, or of `involved`, in the form that `kubectl describe` finds.

    `notice`: has reason, message and is_warning; that of a device also has number and at.
    """
    # The kubelet, too, uses the Node's name as its uid.
    involved = involved or {"kind": "Node", "name": node, "uid": node}
    now = datetime.now(timezone.utc)
    shown, stamp = timestamp(now), f"{int(now.timestamp() * 1e9):x}"
    if "number" in notice:  # so that the name is the same in the next process
        stamp = f"{int(notice['at'] * 1000):x}{notice['number']:05x}"
    return {
        "metadata": {
            "name": f"{involved['name']}.{stamp}",
            "namespace": involved.get("namespace", EVENTS_NAMESPACE),
        },
        "involvedObject": {"apiVersion": "v1", **involved},
        "reason": notice["reason"],
        "message": notice["message"],
        "type": "Warning" if notice["is_warning"] else "Normal",
        "source": {"component": "nvct", "host": node},
        "firstTimestamp": shown,
        "lastTimestamp": shown,
        "count": 1,
    }


def timestamp(moment: datetime | None = None) -> str:
    """Return a moment, by default the present, in the API's form."""
    return f"{moment or datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
