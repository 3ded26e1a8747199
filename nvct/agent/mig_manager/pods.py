# SPDX-License-Identifier: Apache-2.0
"""Finds the pods that have a device of this node's GPUs, by the kubelet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvct.agent.kubelet.pod_resources import SOCKET, Holding, PodResources
from nvct.agent.kubernetes.cluster import FORBIDDEN, POD, Cluster, ClusterError
from nvct.agent.nvml.client import NvmlClient
from nvct.host.nvml.model import NvmlReport

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodDevice:
    """A device of a pod.

    Attributes:
        instance: the ids of GPU instance and compute instance, None for a whole GPU.
    """

    namespace: str
    pod: str
    gpu: str
    instance: tuple[int, int] | None
    device: str

    def __str__(self) -> str:
        """Return e.g. "pod default/train has MIG-1234"."""
        return f"pod {self.namespace}/{self.pod} has {self.device}"


class Pods:
    """The pods of this node that have devices."""

    def __init__(self, nvml: NvmlClient, cluster: Cluster, socket: str = SOCKET) -> None:
        self._nvml = nvml
        self._cluster = cluster
        self._kubelet = PodResources(socket)

    async def devices(self) -> list[PodDevice]:
        """Return the devices of all pods that have not ended; [] where there is no kubelet.

        Raises:
            HostError, NvmlError: the kubelet or NVML does not answer.
        """
        if not self._kubelet.is_there():
            return []
        found = devices(await self._kubelet.holdings(), await self._nvml.report())
        ended = {
            pair
            for pair in {(each.namespace, each.pod) for each in found}
            if await self._has_ended(*pair)
        }
        return [each for each in found if (each.namespace, each.pod) not in ended]

    async def evict(self, pods: Iterable[PodDevice]) -> None:
        """Evict pods; a budget for disruptions is respected.

        Raises:
            ClusterError: one is not to be evicted.
        """
        for namespace, name in sorted({(each.namespace, each.pod) for each in pods}):
            await self._cluster.evict(namespace, name)

    async def close(self) -> None:
        """Close the connection."""
        await self._kubelet.close()

    async def _has_ended(self, namespace: str, name: str) -> bool:
        """Return whether a pod has ended: older kubelets list these, too."""
        try:
            pod = await self._cluster.find(POD, name, namespace)
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            return False
        return pod is None or pod.get("status", {}).get("phase") in ENDED


def devices(holdings: Iterable[Holding], report: NvmlReport) -> list[PodDevice]:
    """Return the devices that containers have, of the GPUs of a report, by any form of an id."""
    known: dict[str, tuple[str, tuple[int, int] | None, str]] = {}
    for gpu in report.gpus:
        known[gpu.uuid] = known[str(gpu.index)] = gpu.uuid, None, gpu.uuid
        for mig in gpu.mig:
            device = gpu.uuid, (mig.gi, mig.ci), mig.uuid
            known[mig.uuid] = known[f"{gpu.index}:{mig.index}"] = device
    found = []
    for holding in holdings:
        for id_ in holding.devices:
            entry = known.get(id_.partition("::")[0])
            if entry is not None:
                gpu_uuid, instance, uuid = entry
                found.append(PodDevice(holding.namespace, holding.pod, gpu_uuid, instance, uuid))
    return list(dict.fromkeys(found))


def sentence(items: Sequence[object], limit: int = 4) -> str:
    """Return some items as one text."""
    more = f" and {len(items) - limit} more" if len(items) > limit else ""
    return "; ".join(map(str, items[:limit])) + more
