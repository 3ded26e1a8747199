# SPDX-License-Identifier: Apache-2.0
"""Finds the pods of this node that have GPUs, and evicts them.

The kubelet says which pod has which device, and the API server everything else about the pod. The
devices of a claim are in the journal of nvct's driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nvct.agent.kubelet.pod_resources import (
    SOCKET,
    Claimed,
    Holding,
    PodResources,
    claimed,
    journal_beside,
    uuid_of,
)
from nvct.agent.kubernetes.cluster import FORBIDDEN, POD, Cluster, ClusterError, Object
from nvct.agent.nvml.client import NvmlClient
from nvct.host.nvml.model import NvmlReport

ENDED = ("Succeeded", "Failed")
NUMBERED = ("nvidia.com/gpu", "nvidia.com/mig-")
"""Prefixes of resources whose device ids may be a GPU's index."""
PROTECTED = "nvct.dev/evict"
"""The label that forbids the eviction of a pod if its value is `never`."""
MIRROR = "kubernetes.io/config.mirror"
"""The annotation of a mirror pod, which stands for a static pod: the kubelet would recreate it."""


@dataclass(frozen=True, slots=True)
class PodDevice:
    """A device of a pod; `instance`: ids of GPU and compute instance, None for a whole GPU."""

    namespace: str
    pod: str
    gpu: str
    instance: tuple[int, int] | None
    device: str
    found: Object | None = field(default=None, compare=False)
    """The pod; None if this account may not read it."""

    def __str__(self) -> str:
        """Return e.g. "pod default/train has MIG-1234"."""
        return f"pod {self.namespace}/{self.pod} has {self.device}"


class Pods:
    """The pods of this node that have devices.

    `node`: this node's name; a pod that the API server has on another node is left out.
    """

    def __init__(
        self, nvml: NvmlClient, cluster: Cluster, socket: str = SOCKET, node: str = ""
    ) -> None:
        self._nvml = nvml
        self._cluster = cluster
        self._node = node
        self._kubelet = PodResources(socket)
        self._journal = journal_beside(socket)

    async def devices(self, gpus: Collection[str] | None = None) -> list[PodDevice]:
        """Return the devices of all pods that have not ended; [] if there is no kubelet.

        `gpus`: only these, by UUID; then a missing kubelet is an error. HostError or NvmlError if
        the kubelet or NVML does not answer.
        """
        if gpus is None and not self._kubelet.is_there():
            return []
        holdings = await self._kubelet.holdings()
        has_claims = any(each.claim for each in holdings)
        of_claims = claimed(self._journal, or_gpu=gpus is not None) if has_claims else {}
        found = devices(holdings, await self._nvml.report(), of_claims, gpus or ())
        found = [each for each in found if gpus is None or each.gpu in gpus]
        names = {(each.namespace, each.pod) for each in found}
        pods = {name: await self._find(*name) for name in names}
        return [
            replace(each, found=pod or None)
            for each in found
            if (pod := pods[each.namespace, each.pod]) is not None
        ]

    async def evict(self, pods: Iterable[PodDevice]) -> None:
        """Evict pods; ClusterError if a PodDisruptionBudget or the pod itself forbids it."""
        pods = tuple(pods)
        for why in filter(None, (protection(each) for each in pods if each.found)):
            raise ClusterError(why)
        uids = {
            (each.namespace, each.pod): each.found["metadata"].get("uid", "") if each.found else ""
            for each in pods
        }
        for (namespace, name), uid in sorted(uids.items()):
            await self._cluster.evict(namespace, name, uid)

    async def close(self) -> None:
        """Close the connection."""
        await self._kubelet.close()

    async def _find(self, namespace: str, name: str) -> Object | None:
        """Return a pod, {} if it may not be read, None if it has ended or runs elsewhere.

        Older kubelets list pods that have ended.
        """
        try:
            pod = await self._cluster.find(POD, name, namespace)
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            return {}
        if pod is None or pod.get("status", {}).get("phase") in ENDED:
            return None
        is_here = not self._node or pod["spec"].get("nodeName") == self._node
        return pod if is_here else None


def devices(
    holdings: Iterable[Holding],
    report: NvmlReport,
    of_claims: Mapping[Claimed, str] | None = None,
    lost: Iterable[str] = (),
) -> list[PodDevice]:
    """Return the devices that containers have, whatever the form of their ids.

    A number is a GPU's index only in NVIDIA's resources: other plugins use numbers as ids, too.

    Args:
        lost: UUIDs of GPUs that NVML may no longer report.
    """
    known: dict[str, tuple[str, tuple[int, int] | None, str]] = {}
    known |= {uuid: (uuid, None, uuid) for uuid in lost}
    numbered: dict[str, tuple[str, tuple[int, int] | None, str]] = {}
    for gpu in report.gpus:
        known[gpu.uuid] = numbered[str(gpu.index)] = gpu.uuid, None, gpu.uuid
        for mig in gpu.mig:
            device = gpu.uuid, (mig.gi, mig.ci), mig.uuid
            known[mig.uuid] = numbered[f"{gpu.index}:{mig.index}"] = device
    found = []
    for holding in holdings:
        for id_ in holding.devices:
            if holding.claim:
                claim = (holding.claim.namespace, holding.claim.name, id_)
                id_ = (of_claims or {}).get(claim, "")
            forms = numbered | known if holding.resource.startswith(NUMBERED) else known
            entry = forms.get(uuid_of(id_))
            if entry is not None:
                gpu_uuid, instance, uuid = entry
                found.append(PodDevice(holding.namespace, holding.pod, gpu_uuid, instance, uuid))
    return list(dict.fromkeys(found))


def protection(pod: PodDevice) -> str:
    """Return why a pod must not be evicted, "" if it may be."""
    if pod.found is None:
        return f"{pod}, and it is not known whether it may be evicted"
    metadata = pod.found["metadata"]
    if metadata.get("deletionTimestamp"):
        return ""
    if (metadata.get("labels") or {}).get(PROTECTED) == "never":
        return f"{pod}, and label {PROTECTED} forbids its eviction"
    if MIRROR in (metadata.get("annotations") or {}):
        return f"{pod}, and it is a static pod, which no eviction ends"
    return ""


def sentence(items: Sequence[object], limit: int = 4) -> str:
    """Return items as one text; those after the first few are only counted."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(map(str, items[:limit])) + more
