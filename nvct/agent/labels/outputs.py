# SPDX-License-Identifier: Apache-2.0
"""Writes labels to a file, the standard output, this machine's Node, or a NodeFeature object."""

from __future__ import annotations

import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable

from nvct.agent.core.logs import Log
from nvct.agent.kubernetes import node_news
from nvct.agent.labels.facts import Labels
from nvct.agent.labels.settings import Settings
from nvct.errors import HostError, OSErrorsAs
from nvct.linux.files import write_atomic


class Output(ABC):
    """A place for labels."""

    @abstractmethod
    async def write(self, labels: Labels) -> None:
        """Replace the labels there; HostError if this fails."""

    def lacks(self, _labels: Labels) -> bool:
        """Return whether somebody is known to have removed or changed labels of this output."""
        return False

    async def close(self) -> None:  # noqa: B027 - some have nothing to end
        """End; keep or remove the labels, as NVIDIA's program does."""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.kubernetes.cluster import Cluster, Kind, Object


MANAGER = "nvct-labels"  # The field manager of server-side apply
NODE_OF = "nfd.node.kubernetes.io/node-name"
MODE = 0o644


class File(Output):
    """A file for Node Feature Discovery's source `local`; it is removed at the end."""

    def __init__(self, path: str, *, stays: bool) -> None:
        self._path = path
        self._stays = stays

    async def write(self, labels: Labels) -> None:
        """Replace the file by a rename; its temporary file begins with a dot, which NFD skips."""
        with OSErrorsAs(HostError, f"labels cannot be written to {self._path}"):
            os.makedirs(os.path.dirname(self._path) or ".", exist_ok=True)
            write_atomic(self._path, text_of(labels).encode(), mode=MODE, sync=False)

    async def close(self) -> None:
        """Remove the file, unless it stays."""
        if not self._stays:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class StandardOutput(Output):
    """The standard output; each change is a block of lines."""

    async def write(self, labels: Labels) -> None:
        """Print the labels."""
        sys.stdout.write(text_of(labels))
        sys.stdout.flush()


class OwnNode(Output):
    """The Node of this machine, by server-side apply: labels of others stay as they are."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._applied: tuple[str, Labels] | None = None
        self._there: Labels | None = None  # as a watch of this process has seen them
        self._stop_listening = node_news.listen(node, self._see)

    def _see(self, node: Object | None) -> None:
        self._there = None if node is None else node["metadata"].get("labels") or {}

    def lacks(self, labels: Labels) -> bool:
        """Return whether the watch has seen a Node without these labels."""
        return self._there is not None and not labels.items() <= self._there.items()

    async def write(self, labels: Labels) -> None:
        """Apply the labels; the server removes labels that were applied before, but not now.

        If the Node still has the labels that were applied last, it is only read.
        """
        from nvct.agent.kubernetes.cluster import NODE
        from nvct.agent.kubernetes.node_watch import find_node

        node = await find_node(self._cluster, self._node)
        uid, there = node["metadata"]["uid"], node["metadata"].get("labels") or {}
        self._there = None  # what the watch has seen is older
        if self._applied == (uid, labels) and labels.items() <= there.items():
            return
        # With the uid, an apply never creates a Node that was deleted just now.
        metadata = {"name": self._node, "uid": uid, "labels": labels}
        await self._cluster.apply(NODE, {"metadata": metadata}, MANAGER)
        self._applied = (uid, dict(labels))

    async def close(self) -> None:
        """End; the labels stay."""
        self._stop_listening()
        await self._cluster.close()


class NodeFeature(Output):
    """A NodeFeature object, from which Node Feature Discovery's master labels the Node."""

    def __init__(self, cluster: Cluster, settings: Settings, warn: Callable[[str], None]) -> None:
        self._cluster, self._warn = cluster, warn
        self._node, self._pod = settings.node, settings.pod_name
        self._namespace = settings.namespace

    async def write(self, labels: Labels) -> None:
        """Apply the object, and remove labels that another program has left in it."""
        kind = node_feature()
        metadata: Object = {
            "name": f"nvidia-features-for-{self._node}",
            "namespace": self._namespace,
            "labels": {NODE_OF: self._node},
        }
        owners = await self._owners()
        if owners:
            metadata["ownerReferences"] = owners
        features: Object = {"attributes": {}, "flags": {}, "instances": {}}
        spec: Object = {"features": features}
        if labels:  # the server makes null of an empty object, which NFD's schema refuses
            spec["labels"] = labels
        applied = await self._apply(kind, {"metadata": metadata, "spec": spec})
        left = (applied["spec"].get("labels") or {}).keys() - labels.keys()
        if left:
            version = applied["metadata"]["resourceVersion"]
            manifest = {
                "metadata": {**metadata, "resourceVersion": version},
                "spec": {"labels": dict.fromkeys(left)},
            }
            await self._cluster.merge(kind, manifest, MANAGER)

    async def close(self) -> None:
        """End; the object stays."""
        await self._cluster.close()

    async def _apply(self, kind: Kind, manifest: Object) -> Object:
        from nvct.agent.kubernetes.cluster import NOT_FOUND, ClusterError

        try:
            return await self._cluster.apply(kind, manifest, MANAGER)
        except ClusterError as error:
            if error.status != NOT_FOUND:
                raise
            raise ClusterError(
                f"the cluster has no NodeFeature objects or no namespace {self._namespace}",
                hint="install Node Feature Discovery 0.14 or later, or label the Node "
                "itself: GFD_LABEL_NODE=true",
                status=NOT_FOUND,
            ) from error

    async def _owners(self) -> list[Object]:
        """Return the owners of the object: this pod's DaemonSet, and the pod; none without one."""
        from nvct.agent.kubernetes.cluster import POD, ClusterError

        if not self._pod:
            return []
        try:
            pod = await self._cluster.find(POD, self._pod, self._namespace)
            why_not = (
                f"{self._pod} does not belong to a DaemonSet"
                if pod
                else f"there is no pod {self._pod}"
            )
        except ClusterError as error:
            pod, why_not = None, error.message
        metadata = pod["metadata"] if pod else {}
        sets = [o for o in metadata.get("ownerReferences", ()) if o.get("kind") == "DaemonSet"]
        if not sets:  # with a pod, which comes and goes, the Node would lose its labels
            self._warn(f"the NodeFeature object has no owner: {why_not}")
            return []
        own = {"name": self._pod, "uid": metadata["uid"]}
        return [*sets[:1], {"apiVersion": "v1", "kind": "Pod", **own}]


def text_of(labels: Labels) -> str:
    """Return labels as lines KEY=VALUE, sorted."""
    return "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))


def node_feature() -> Kind:
    """Return the kind of NodeFeature objects."""
    from nvct.agent.kubernetes.cluster import Kind

    group = "nfd.k8s-sigs.io"
    return Kind(group, "v1alpha1", "NodeFeature", "nodefeatures", is_namespaced=True)


def of_settings(settings: Settings, connect: Callable[[str], Cluster], log: Log) -> Output:
    """Return the output that the settings choose; `connect` returns the cluster of a kubeconfig.

    ClusterError if an output needs the cluster, and there is no access to it.
    """
    if settings.label_node or settings.use_node_feature_api:
        from nvct.agent.kubernetes.cluster import ClusterError  # lightkube, 12 MB

        try:
            cluster = connect(settings.kubeconfig)
        except ClusterError as error:
            to_file = "or write the labels to a file: GFD_USE_NODE_FEATURE_API=false"
            raise ClusterError(error.message, hint=f"{error.hint}; {to_file}") from error
        if settings.label_node:
            return OwnNode(cluster, settings.node)
        return NodeFeature(cluster, settings, log.warning)
    if not settings.output_file:
        return StandardOutput()
    stays = settings.oneshot or settings.sleep_interval == "infinite"
    return File(settings.output_file, stays=stays)
