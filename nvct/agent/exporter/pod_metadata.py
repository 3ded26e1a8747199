# SPDX-License-Identifier: Apache-2.0
"""Asks the API server for the labels and UIDs of this node's pods, as labels of metrics.

Off by default: it needs the right to list pods, and labels of pods multiply series. The pods of
this node alone are listed; if that fails, series have none of these labels, and the log says why.
"""

from __future__ import annotations

import re
import time

from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from nvct.agent.kubernetes.cluster import Cluster
    from nvct.agent.logs import Log

PERIOD_S = 30.0
RESERVED = frozenset({
    "gpu", "UUID", "uuid", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID",
    "hostname", "container", "namespace", "pod", "container_name", "pod_namespace", "pod_name",
    "pod_uid", "vgpu", "err_code", "err_msg", "xid", "clock_event", "window_size_in_ms",
    "hpc_job",
})  # fmt: skip
"""Labels of metrics that no label of a pod replaces; those that begin so are not replaced too:"""
RESERVED_STARTS = ("__", "dra_", "DCGM_")
MOST, MOST_BYTES = 64, 8192
"""Labels of a pod, and bytes of their names and values: each series of its GPUs repeats them."""


class PodMetadata:
    """Labels and UIDs of the pods of one node."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        node: str,
        *,
        with_labels: bool,
        with_uid: bool,
        allowed: tuple[str, ...],
        journal: Log,
    ) -> None:
        """Keep the arguments.

        Args:
            connect: returns the cluster.
            node: name of this Node.
            with_labels: whether labels are wanted.
            with_uid: whether UIDs are wanted.
            allowed: regular expressions that find a part of a label's name; empty for all labels.
            journal: the log.
        """
        self._connect, self._node, self._log = connect, node, journal
        self._with_labels, self._with_uid = with_labels, with_uid
        self._allowed = [re.compile(pattern) for pattern in allowed]
        self._cluster: Cluster | None = None
        self._pods: dict[tuple[str, str], dict[str, str]] = {}
        self._at = -PERIOD_S
        self._problem = ""
        self._cut: list[str] = []
        if with_labels and not allowed:
            journal.warning(
                "every label of a pod becomes a label of its metrics: "
                "--kubernetes-pod-label-allowlist-regex limits them"
            )

    async def refresh(self) -> None:
        """Ask the API server, if the last answer is old."""
        if time.monotonic() - self._at < PERIOD_S:
            return
        self._at = time.monotonic()
        from nvct.agent.kubernetes.cluster import POD  # lightkube, 12 MB

        try:
            self._cluster = self._cluster or self._connect()
            listing = await self._cluster.list(POD, fields={"spec.nodeName": self._node})
            self._cut = []
            self._pods = dict(map(self._of_pod, listing.objects))
            problem = self._why_cut()
        except NvctError as error:
            self._pods, problem = {}, f"metrics have no labels of pods: {error.message}"
        if problem and problem != self._problem:
            self._log.warning(problem)
        self._problem = problem

    async def close(self) -> None:
        """End the connection."""
        if self._cluster is not None:
            await self._cluster.close()

    def of(self, namespace: str, pod: str) -> Mapping[str, str]:
        """Return the labels of a pod's metrics."""
        return self._pods.get((namespace, pod), {})

    def _of_pod(self, pod: Mapping[str, Any]) -> tuple[tuple[str, str], dict[str, str]]:
        metadata = pod["metadata"]
        labels: dict[str, str] = {}
        room = MOST_BYTES
        for key, value in sorted((metadata.get("labels") or {}).items()):
            name = label_name(key)
            if not self._is_allowed(key) or name in RESERVED or name in labels:
                continue
            room -= len(name) + len(value.encode())
            if room < 0 or len(labels) == MOST:
                self._cut.append(f"{metadata['namespace']}/{metadata['name']}")
                break
            labels[name] = value
        if self._with_uid:
            labels["pod_uid"] = metadata["uid"]
        return (metadata["namespace"], metadata["name"]), labels

    def _why_cut(self) -> str:
        if not self._cut:
            return ""
        return (
            f"metrics have the first {MOST} labels of a pod, and {MOST_BYTES} bytes of them; "
            f"pod {min(self._cut)} has more"
        )

    def _is_allowed(self, key: str) -> bool:
        if not self._with_labels or label_name(key).startswith(RESERVED_STARTS):
            return False
        return not self._allowed or any(pattern.search(key) for pattern in self._allowed)


def label_name(key: str) -> str:
    """Return the name of a metric's label for that of a pod, as dcgm-exporter writes it."""
    name = re.sub("[^a-zA-Z0-9_]", "_", key)
    return f"_{name}" if name[:1].isdigit() else name
