# SPDX-License-Identifier: Apache-2.0
"""Asks the API server for labels of metrics that the kubelet does not know.

Labels and UIDs of pods are off by default: they need the right to list pods, and labels of pods
multiply series. The node's ResourceSlices are listed if a claim has a device whose UUID nothing
else shows, such as the MIG device of another driver. Only objects of this node are listed; if that
fails, series have none of these labels, and the log says why.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from nvct.agent.core.logs import Log
from nvct.agent.exporter import go_regexp
from nvct.agent.exporter.settings import Settings
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubernetes.cluster import Cluster

PERIOD_S = 30.0
RESERVED = frozenset({
    "gpu", "UUID", "uuid", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID",
    "Hostname", "hostname", "container", "namespace", "pod", "container_name", "pod_namespace",
    "pod_name", "pod_uid", "vgpu", "err_code", "err_msg", "xid", "clock_event",
    "window_size_in_ms", "hpc_job",
})  # fmt: skip
"""Labels of metrics that no label of a pod replaces."""
RESERVED_STARTS = ("__", "dra_", "DCGM_")
"""The same for labels that begin so."""
MOST, MOST_BYTES = 64, 8192
"""The most labels of a pod, and the most bytes of them: each series of its GPUs repeats them."""


class NodeObjects(ABC):
    """Objects of one node, as the API server has them; they are read again every PERIOD_S."""

    lacking = "labels of pods"

    def __init__(self, connect: Callable[[], Cluster], node: str, journal: Log) -> None:
        self.known: Mapping[tuple[str, str], Any] = {}
        self._connect, self._node, self._log = connect, node, journal
        self._cluster: Cluster | None = None
        self._at = -PERIOD_S
        self._problem = ""

    async def refresh(self) -> None:
        """Ask the API server, if the last answer is old."""
        if time.monotonic() - self._at < PERIOD_S:
            return
        self._at = time.monotonic()
        try:
            self._cluster = self._cluster or self._connect()
            self.known, problem = await self._ask(self._cluster, {"spec.nodeName": self._node})
        except NvctError as error:
            self.known = {}
            problem = f"metrics have no {self.lacking}: {error.message}"
        if problem and problem != self._problem:
            self._log.warning(problem)
        self._problem = problem

    async def close(self) -> None:
        """End the connection."""
        if self._cluster is not None:
            await self._cluster.close()

    @abstractmethod
    async def _ask(
        self, cluster: Cluster, fields: dict[str, str]
    ) -> tuple[Mapping[tuple[str, str], Any], str]:
        """Return what is known of the node's objects, and why a part is missing, "" if none is."""


class SliceDevices(NodeObjects):
    """UUIDs of the devices in the ResourceSlices of one node, by pool and name."""

    lacking = "pods of claimed devices"

    async def _ask(
        self, cluster: Cluster, fields: dict[str, str]
    ) -> tuple[Mapping[tuple[str, str], str], str]:
        from nvct.agent.dra import selectors, slices

        _, listing = await slices.newest(
            lambda version: cluster.list(slices.kind(version), fields=fields)
        )
        return {
            (entry["spec"]["pool"]["name"], device["name"]): uuid
            for entry in listing.objects
            for device in entry["spec"].get("devices") or ()
            if (uuid := _attribute(selectors.body(device), "uuid"))
        }, ""


class PodMetadata(NodeObjects):
    """Labels and UIDs of the pods of one node."""

    def __init__(
        self, connect: Callable[[], Cluster], node: str, journal: Log, settings: Settings
    ) -> None:
        super().__init__(connect, node, journal)
        self._with_labels, self._with_uid = settings.pod_labels, settings.pod_uid
        self._allowed = [go_regexp.compiled(each) for each in settings.pod_label_patterns]
        if self._with_labels and not self._allowed:
            journal.warning(
                "every label of a pod becomes a label of its metrics: limit them by "
                "--kubernetes-pod-label-allowlist-regex"
            )

    async def _ask(
        self, cluster: Cluster, fields: dict[str, str]
    ) -> tuple[Mapping[tuple[str, str], Mapping[str, str]], str]:
        from nvct.agent.kubernetes.cluster import POD  # lightkube, 12 MB

        cut: list[str] = []
        listing = await cluster.list(POD, fields=fields)
        pods = dict(self._of_pod(pod, cut) for pod in listing.objects)
        why_cut = (
            f"metrics have at most {MOST} labels of a pod, with at most {MOST_BYTES} bytes; "
            f"pod {min(cut)} has more"
            if cut
            else ""
        )
        return pods, why_cut

    def of(self, namespace: str, pod: str) -> Mapping[str, str]:
        """Return the labels of a pod's metrics."""
        labels: Mapping[str, str] = self.known.get((namespace, pod), {})
        return labels

    def _of_pod(
        self, pod: Mapping[str, Any], cut: list[str]
    ) -> tuple[tuple[str, str], dict[str, str]]:
        """Return namespace, name and labels of a pod; with too many labels, add it to `cut`."""
        metadata = pod["metadata"]
        labels: dict[str, str] = {}
        room = MOST_BYTES
        for key, value in sorted((metadata.get("labels") or {}).items()):
            name = label_name(key)
            if not self._is_allowed(key) or name in RESERVED or name in labels:
                continue
            room -= len(name) + len(value.encode())
            if room < 0 or len(labels) == MOST:
                cut.append(f"{metadata['namespace']}/{metadata['name']}")
                break
            labels[name] = value
        if self._with_uid:
            labels["pod_uid"] = metadata["uid"]
        return (metadata["namespace"], metadata["name"]), labels

    def _is_allowed(self, key: str) -> bool:
        if not self._with_labels or label_name(key).startswith(RESERVED_STARTS):
            return False
        return not self._allowed or any(pattern.search(key) for pattern in self._allowed)


def _attribute(body: Mapping[str, Any], name: str) -> str:
    """Return a text attribute of a device, "" if it has none."""
    value = (body.get("attributes") or {}).get(name) or {}
    return str(value.get("string") or "")


def label_name(key: str) -> str:
    """Return the name of a metric's label for that of a pod, as dcgm-exporter writes it."""
    name = re.sub("[^a-zA-Z0-9_]", "_", key)
    return f"_{name}" if name[:1].isdigit() else name
