# SPDX-License-Identifier: Apache-2.0
"""The GPU nodes of a cluster, from the API server's Nodes, pods and events; waits for DaemonSets.

An uninstallation waits for a DaemonSet on all nodes, because its init containers do the work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from nvct.agent.condition import condition
from nvct.agent.dra import selectors, slices
from nvct.agent.dra.devices import DRIVER as DRA_DRIVER
from nvct.agent.kubernetes.cluster import (
    EVENT,
    FORBIDDEN,
    NODE,
    NOT_FOUND,
    POD,
    Cluster,
    ClusterError,
    Kind,
    Object,
)
from nvct.agent.kubernetes.quantity import count
from nvct.errors import HostError

AGENT = {"app.kubernetes.io/component": "agent"}
"""A label of the agent's pods, which pods of other programs may have, too."""
WORKER = {"app.kubernetes.io/component": "worker"}
"""The same for the pods of installer and worker, for which the agent waits."""
NAME, MARK = "app.kubernetes.io/name", "nvct.dev/policy"
"""Label and annotation of nvct's pods: the annotation stays if nameOverride changes the label."""
PREFIX = "nvidia.com/"
DRIVER = (f"{PREFIX}cuda.driver-version.full", f"{PREFIX}gpu.product")
NO_AGENT = "no pod of the agent runs here"
SILENT = timedelta(minutes=30)  # Three heartbeats: an older condition counts as Unknown
UNKNOWN = "Unknown"


class GpuNode(NamedTuple):
    """A node with GPUs, or with a pod of the agent."""

    name: str
    # allocatable devices by resource, and DRA's by driver and type; both include those that pods
    # have
    gpus: dict[str, int]
    driver: str
    product: str
    agent: str  # of the agent's pod: Ready, NotReady, or "" if there is none
    ready: str  # whether pods can have the GPUs, as the condition nvct.dev/GPUReady says
    reason: str  # why the agent is not ready, or the message of the condition if it is not True


async def nodes(cluster: Cluster, namespace: str) -> list[GpuNode]:
    """Return the GPU nodes, sorted by name; ClusterError as `Cluster`."""
    pods = _by_node(await cluster.find_all(POD, namespace, AGENT))
    workers = _by_node(await cluster.find_all(POD, namespace, WORKER))
    reasons = warnings(await cluster.find_all(EVENT, namespace))
    claimable = claimable_devices(await _slices(cluster))
    found = [
        gpu_node(node, pods.get(name), reasons, claimable.get(name, {}), workers.get(name))
        for node in await cluster.find_all(NODE)
        if (name := node["metadata"]["name"])
    ]
    return sorted(each for each in found if each.gpus or each.agent)


async def _slices(cluster: Cluster) -> list[Object]:
    """Return the ResourceSlices; [] if the server has no such kind or the user may not list it."""
    try:
        return (await slices.newest(lambda version: cluster.find_all(slices.kind(version))))[1]
    except ClusterError as error:
        if error.status not in (FORBIDDEN, NOT_FOUND):
            raise
    return []


def claimable_devices(found: list[Object]) -> dict[str, dict[str, int]]:
    """Return the number of devices in ResourceSlices, by node and by the devices' type."""
    counts: dict[str, dict[str, int]] = {}
    for spec in (each["spec"] for each in found):
        of_node = counts.setdefault(spec.get("nodeName") or "", {})
        for device in spec.get("devices") or () if spec["driver"] == DRA_DRIVER else ():
            attributes = selectors.body(device).get("attributes") or {}
            kind = (attributes.get("type") or {}).get("string") or "gpu"
            name = DRA_DRIVER if kind == "gpu" else f"{DRA_DRIVER}/{kind}"
            of_node[name] = of_node.get(name, 0) + 1
    return counts


def _by_node(pods: list[Object]) -> dict[str, Object]:
    """Return nvct's pods by node; of two on a node, during an upgrade, the ready one."""
    ours = sorted(filter(_is_ours, pods), key=_is_ready)
    return {pod["spec"].get("nodeName", ""): pod for pod in ours}


def _is_ours(pod: Object) -> bool:
    metadata = pod["metadata"]
    name = (metadata.get("labels") or {}).get(NAME)
    return name == "nvct" or MARK in (metadata.get("annotations") or {})


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def warnings(events: list[Object]) -> dict[str, str]:
    """Return the latest warning of each object, by its name."""

    def moment(event: Object) -> str:
        series = event.get("series") or {}
        return str(series.get("lastObservedTime") or event.get("lastTimestamp") or "")

    return {
        event["involvedObject"]["name"]: " ".join(event.get("message", "").split())
        for event in sorted(events, key=moment)
        if event.get("type") == "Warning"
    }  # fmt: skip


def gpu_node(
    node: Object,
    pod: Object | None,
    reasons: dict[str, str],
    claimable: dict[str, int] | None = None,
    worker: Object | None = None,
) -> GpuNode:
    """Return what is shown of a node.

    `reasons`: the latest warning by pod name. `worker`: the node's pod of installer and worker; if
    it fails, the agent fails.
    """
    labels = node["metadata"].get("labels") or {}
    allocatable = node.get("status", {}).get("allocatable") or {}
    counts = {key: count(n) for key, n in allocatable.items() if key.startswith(PREFIX)}
    gpus = {key: number for key, number in {**counts, **(claimable or {})}.items() if number}
    driver, product = (labels.get(key, "") for key in DRIVER)
    agent, reason = "", NO_AGENT
    if pod is not None:
        agent = "Ready" if _is_ready(pod) else "NotReady"
        failing = [each for each in (worker, pod) if each is not None and not _is_ready(each)]
        why = [reasons.get(each["metadata"]["name"], "") for each in failing]
        reason = "" if _is_ready(pod) else next(filter(None, why), "no event says why")
    ready, says = _condition(node, datetime.now(timezone.utc))
    return GpuNode(node["metadata"]["name"], gpus, driver, product, agent, ready, says or reason)


def _condition(node: Object, now: datetime) -> tuple[str, str]:
    """Return the status of the condition, and why the GPUs are not ready."""
    found = condition.find(node)
    if found is None:
        return UNKNOWN, ""
    heartbeat = found.get("lastHeartbeatTime")
    if not heartbeat:
        return UNKNOWN, "the condition does not say when it was written"
    if now - datetime.fromisoformat(heartbeat.replace("Z", "+00:00")) > SILENT:
        return UNKNOWN, f"the agent has been silent since {heartbeat}"
    is_good = found.get("reason") == condition.READY
    return found["status"], "" if is_good else found.get("message", "")


DAEMON_SET = Kind("apps", "v1", "DaemonSet", "daemonsets", is_namespaced=True)
POLL_S = 1.0
SERVER_ERROR = 500


class Progress(NamedTuple):
    """How many of the desired nodes have a ready pod of the latest template."""

    ready: int
    desired: int
    is_known: bool

    @property
    def is_done(self) -> bool:
        """Whether all desired nodes have one."""
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
    """Wait until a DaemonSet is ready on all nodes; say the progress and init messages.

    An API server that does not answer is asked again. ClusterError if the DaemonSet does not
    exist or may not be read; HostError if it is not ready in time.
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
            for sentence in await _unfinished(cluster, found, namespace) if found else ():
                say(sentence)
            nodes = f"{last.desired - last.ready} of {last.desired} nodes" if last else "the nodes"
            raise HostError(
                f"{nodes} are not done after {timeout_s:g} s",
                hint=f"kubectl --namespace {namespace} describe pods shows why",
            )
        await asyncio.sleep(POLL_S)
    for sentence in await init_messages(cluster, found, namespace):
        say(sentence)


async def _unfinished(cluster: Cluster, daemon_set: Object, namespace: str) -> list[str]:
    """Return why pods of a DaemonSet are not ready, by node."""
    labels = daemon_set["spec"]["selector"]["matchLabels"]
    pods = await cluster.find_all(POD, namespace, labels)
    return sorted(
        f"{pod['spec'].get('nodeName', 'no node')} is not done: {_last_words(pod['status'])}"
        for pod in pods
        if not _is_ready(pod)
    )


def _last_words(status: Object) -> str:
    """Return the last message line of a container that failed, or what its pod waits for."""
    waits = status.get("phase", "")
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for state in (each.get("state", {}), each.get("lastState", {})):
            ended = state.get("terminated", {})
            if ended.get("exitCode") and ended.get("message"):
                line: str = ended["message"].splitlines()[-1]
                return line
            waits = state.get("waiting", {}).get("reason", waits)
    return str(waits)


async def init_messages(cluster: Cluster, daemon_set: Object, namespace: str) -> list[str]:
    """Return the last messages of the init containers of a DaemonSet's pods, by node."""
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
