# SPDX-License-Identifier: Apache-2.0
"""Finds the pods that have a GPU or MIG instance, by all device ids of `kubelet/pod_resources`.

The forms: GPU-… and MIG-… UUIDs; those with `::N` or `/vgpuN` at the end, which a plugin makes of
one shared GPU; nvidia0 and nvidia0/gi7 (GKE); gpu-0, a device of the driver gpu.nvidia.com for
dynamic resource allocation. The MIG device of a claim is in the journal of nvct's driver.

A GPU or instance that several containers share has the labels of none of them: each value would be
shown several times, and sums would be wrong. With --kubernetes-virtual-gpus it has a series for
each of them, with the replica in label vgpu.

Which batch job has which GPU is in a folder that the scheduler's prolog writes. A file is named by
a GPU's index, or by GPU and GPU instance as 0.7, and has a job in each line: the format of
dcgm-exporter (`--hpc-job-mapping-dir`). Other files are ignored, and so are links: if the folder
belongs to another user, a link could show any file of root's in metrics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from os import stat_result

from nvct.agent.core.logs import Log
from nvct.agent.exporter.series import Pods
from nvct.agent.exporter.settings import Settings
from nvct.agent.kubelet.pod_resources import (
    DRA_DRIVER,
    Claimed,
    Holding,
    PodResources,
    claimed,
    journal_beside,
)
from nvct.errors import DocumentError, HostError, NvctError
from nvct.host.nvml.sample_model import NvmlSamples
from nvct.linux.files import read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.exporter.pod_metadata import PodMetadata, SliceDevices

GPU = "nvidia.com/gpu"
PREFIXES = (f"{GPU}.", "nvidia.com/mig-")
"""Of more resources whose devices are GPUs: a plugin can rename GPU to nvidia.com/gpu.shared."""
REPLICA = re.compile(r"(.+?)(?:::|/vgpu)(\d*)")
WHOLE = -1
NEW = ("container", "namespace", "pod")
OLD = ("container_name", "pod_namespace", "pod_name")


class PodDevices:
    """The pods that have GPUs, from the kubelet's last answer."""

    def __init__(
        self,
        settings: Settings,
        journal: Log,
        *,
        metadata: PodMetadata | None = None,
        slices: SliceDevices | None = None,
    ) -> None:
        self._settings, self._log = settings, journal
        self._names = frozenset((GPU, *settings.resources))
        self._labels = OLD if settings.old_namespace else NEW
        self._metadata, self._slices = metadata, slices
        self._kubelet = PodResources(settings.socket)
        self._holdings: tuple[Holding, ...] = ()
        self._journal = journal_beside(settings.socket)
        self._claimed: dict[Claimed, str] = {}
        self.problem = "the kubelet has not been asked yet"

    async def refresh(self) -> None:
        """Ask the kubelet."""
        before = self.problem
        self._holdings, self.problem = await self._ask()
        has_claims = any(holding.claim for holding in self._holdings)
        self._claimed = claimed(self._journal) if has_claims else {}
        await self._add_slices()
        if self.problem and self.problem != before:
            self._log.info(f"metrics have no pods: {self.problem}")
        if self._metadata is not None and self._holdings:
            await self._metadata.refresh()

    async def close(self) -> None:
        """End the connection."""
        await self._kubelet.close()
        for asked in (self._metadata, self._slices):
            if asked is not None:
                await asked.close()

    async def _add_slices(self) -> None:
        """Add the claims' devices that nvct's driver did not prepare, from the node's slices."""
        if self._slices is None:
            return
        others = {
            (claim.namespace, claim.name, device): (claim.pool, device)
            for holding in self._holdings
            if (claim := holding.claim) and holding.resource == DRA_DRIVER
            for device in holding.devices
        }
        others = {key: name for key, name in others.items() if key not in self._claimed}
        if others:
            await self._slices.refresh()
        known = self._slices.known
        self._claimed |= {key: known[name] for key, name in others.items() if name in known}

    def labels(self, samples: NvmlSamples) -> Pods:
        """Return the labels of the container that has a device, by UUID and id of the instance."""
        found = labels(
            self._holdings, samples, self._labels, self._is_device, claimed=self._claimed,
            virtual=self._settings.virtual_gpus, claims=self._settings.claims,
        )  # fmt: skip
        if self._metadata is None:
            return found
        _, namespace, name = self._labels
        return {
            key: [{**pod, **self._metadata.of(pod[namespace], pod[name])} for pod in pods]
            for key, pods in found.items()
        }

    def holders(self, samples: NvmlSamples) -> Pods:
        """Return the labels of all containers that have a device, shared or not."""
        return labels(
            self._holdings, samples, NEW, self._is_device, virtual=True, claimed=self._claimed
        )

    def _is_device(self, resource: str) -> bool:
        return resource in self._names or resource.startswith(PREFIXES) or resource == DRA_DRIVER

    async def _ask(self) -> tuple[tuple[Holding, ...], str]:
        if self._settings.kubernetes is False:
            return (), "switched off"
        if not self._kubelet.is_there():
            return (), f"{self._settings.socket} does not exist"
        try:
            return await self._kubelet.holdings(), ""
        except HostError as error:
            return (), error.message


def labels(
    holdings: tuple[Holding, ...],
    samples: NvmlSamples,
    names: tuple[str, str, str],  # of the labels for container, namespace and pod
    is_device: Callable[[str], bool],
    *,
    virtual: bool = False,
    claims: bool = False,
    claimed: Mapping[Claimed, str] | None = None,
) -> Pods:
    """Return the labels of the containers that have a device, by UUID and id of the instance."""
    known = _devices(samples)
    found: dict[tuple[str, int], dict[tuple[str, ...], dict[str, str]]] = {}
    for holding in holdings:
        for id_ in holding.devices if is_device(holding.resource) else ():
            if holding.claim:
                id_ = (claimed or {}).get((holding.claim.namespace, holding.claim.name, id_), id_)
            replica = REPLICA.fullmatch(id_)
            key = known.get(replica[1] if replica else id_)
            if key:
                holder = (holding.container, holding.namespace, holding.pod)
                more = {"vgpu": replica[2]} if replica and replica[2] and virtual else {}
                more |= _of_claim(holding, id_, samples) if claims else {}
                found.setdefault(key, {})[holder] = more
    return {
        key: [
            {**dict(zip(names, holder, strict=True)), **more} for holder, more in holders.items()
        ]
        for key, holders in found.items()
        if virtual or len(holders) == 1
    }


def _of_claim(holding: Holding, uuid: str, samples: NvmlSamples) -> dict[str, str]:
    """Return the labels of a claim, by the names of dcgm-exporter."""
    if holding.claim is None:
        return {}
    labels = {
        "dra_claim_name": holding.claim.name,
        "dra_claim_namespace": holding.claim.namespace,
        "dra_driver_name": holding.resource,
        "dra_pool_name": holding.claim.pool,
        "dra_device_name": holding.devices[0],
    }
    for mig in (mig for gpu in samples.gpus for mig in gpu.mig if mig.uuid == uuid):
        labels |= {"dra_mig_profile": mig.profile, "dra_mig_device_uuid": uuid}
    return labels


def _devices(samples: NvmlSamples) -> Mapping[str, tuple[str, int]]:
    """Return UUID of the GPU and id of the instance, by each form of a device's id."""
    devices = {}
    for gpu in samples.gpus:
        for id_ in (gpu.uuid, f"nvidia{gpu.minor}", str(gpu.index), f"gpu-{gpu.minor}"):
            devices[id_] = (gpu.uuid, WHOLE)
        for mig in gpu.mig:
            devices[mig.uuid] = devices[f"nvidia{gpu.minor}/gi{mig.gi}"] = (gpu.uuid, mig.gi)
    return devices


JOBS_FILE = re.compile(r"\d+(\.\d+)?")
JOBS_LIMIT = 1 << 20  # Bytes of a file; a larger one is left out
JOBS = 64  # Of one device; each of them has a series of every metric
JOB_LABEL = "hpc_job"


def read_jobs(folder: str) -> tuple[dict[str, list[str]], str]:
    """Return the jobs by the names of files, and why some are missing, "" if none are."""
    try:
        names = sorted(filter(JOBS_FILE.fullmatch, os.listdir(folder)))
    except OSError as error:
        return {}, f"metrics have no jobs: {error.filename}: {error.strerror}"
    jobs, problem = {}, ""
    for name in names:
        path = os.path.join(folder, name)
        try:
            data = read_bytes(path, JOBS_LIMIT, check=_refuse_link)
        except FileNotFoundError:
            continue  # its job has just ended
        except OSError as error:
            problem = f"metrics lack jobs: {path}: {error.strerror}"
        except NvctError as error:
            problem = f"metrics lack jobs: {error.message}"
        else:
            lines = map(str.strip, data.decode(errors="replace").splitlines())
            jobs[name] = list(dict.fromkeys(filter(None, lines)))[:JOBS]
    return jobs, problem


def _refuse_link(path: str, opened: stat_result) -> None:
    if not os.path.samestat(os.lstat(path), opened):
        raise DocumentError(f"{path} is a link")


def with_jobs(pods: Pods, samples: NvmlSamples, jobs: Mapping[str, list[str]]) -> Pods:
    """Return the labels of pods with those of jobs added: one set for each pod and job."""
    found = {key: list(labels) for key, labels in pods.items()}
    for gpu in samples.gpus:
        names = {(gpu.uuid, -1): str(gpu.index)}
        names |= {(gpu.uuid, mig.gi): f"{gpu.index}.{mig.gi}" for mig in gpu.mig}
        for key, name in names.items():
            if jobs.get(name):
                found[key] = [
                    {**pod, JOB_LABEL: job} for pod in found.get(key) or [{}] for job in jobs[name]
                ]
    return found
