# SPDX-License-Identifier: Apache-2.0
"""Asks the kubelet which container has which devices, by its service PodResourcesLister.

gRPC, 12 MB, is loaded by the first question.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, TypeAlias

from nvct.errors import HostError, NvctError
from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.files import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    import grpc.aio
    from google.protobuf.message import Message

    from nvct.agent.kubelet import kubelet_pb2 as api

# gRPC's handlers of fork(2) stop its threads; the agent does not fork after it has loaded gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
VERSIONS = ("v1", "v1alpha1")
"""Kubernetes before 1.20 serves only v1alpha1; the messages are the same."""
TIMEOUT_S = 5.0
LIMIT = 64 << 20  # Bytes of an answer, enough for a node with very many pods
REPLICA = "::"  # Between a device's UUID and the number of a replica
DRA_DRIVER = "gpu.nvidia.com"
JOURNAL = f"plugins/{DRA_DRIVER}/nvct-claims.json"  # Of nvct's driver, in the kubelet's folder
JOURNAL_LIMIT = 16 << 20  # Bytes, as in `nvct.agent.dra.journal`
Claimed: TypeAlias = tuple[str, str, str]
"""Namespace and name of a claim, and the device's name in its pool."""
RECONNECT_MS = 1000  # The longest pause between attempts to connect; gRPC's is two minutes


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim, and the pool of its device."""

    name: str
    namespace: str
    pool: str


@dataclass(frozen=True, slots=True)
class Holding:
    """The devices of one resource that a container has."""

    namespace: str
    pod: str
    container: str
    resource: str  # its name; the driver's for a claim
    devices: tuple[str, ...]  # their ids; the name in the pool for a claim
    claim: Claim | None = None  # None for the devices of a device plugin


def uuid_of(id_: str) -> str:
    """Return the UUID in a device's id, without the number of a replica."""
    return id_.partition(REPLICA)[0]


class PodResources:
    """One channel to the kubelet's socket; HostError if the kubelet does not answer."""

    def __init__(self, socket: str = SOCKET) -> None:
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None
        self._versions: tuple[str, ...] = VERSIONS

    def is_there(self) -> bool:
        """Return whether the socket exists."""
        return os.path.exists(self._socket)

    async def holdings(self) -> tuple[Holding, ...]:
        """Return what all containers of this node have."""
        return tuple(_holdings(await self._list()))

    async def pods(self) -> frozenset[str]:
        """Return the names of all pods of this node."""
        return frozenset(pod.name for pod in (await self._list()).pod_resources)

    async def allocatable(self) -> dict[str, frozenset[str]]:
        """Return the ids of healthy devices by resource; needs a kubelet of 1.23 or later."""
        import grpc.aio

        from nvct.agent.kubelet import kubelet_pb2 as api

        try:
            answer: api.AllocatableResourcesResponse = await self._ask(
                "/v1.PodResourcesLister/GetAllocatableResources",
                api.AllocatableResourcesRequest(),
                api.AllocatableResourcesResponse,
            )
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error
        found: dict[str, frozenset[str]] = {}
        for entry in answer.devices:  # one for each device, or for each resource
            name = entry.resource_name
            found[name] = found.get(name, frozenset()) | set(entry.device_ids)
        return found

    async def _list(self) -> api.ListPodResourcesResponse:
        import grpc.aio

        from nvct.agent.kubelet import kubelet_pb2 as api

        for version in self._versions:
            try:
                answer: api.ListPodResourcesResponse = await self._ask(
                    f"/{version}.PodResourcesLister/List",
                    api.ListPodResourcesRequest(),
                    api.ListPodResourcesResponse,
                )
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED and version != VERSIONS[-1]:
                    continue
                self._versions = VERSIONS  # the next kubelet may be of another version
                raise self._failure(error) from error
            self._versions = (version,)
            return answer
        raise HostError(f"the kubelet on {self._socket} has no service for pods' resources")

    async def _ask(self, method: str, request: Message, answer: Any) -> Any:  # noqa: ANN401 - gRPC's
        import grpc.aio

        if self._channel is None:
            options = (
                ("grpc.max_receive_message_length", LIMIT),
                ("grpc.use_local_subchannel_pool", 1),  # else a closed channel's pause stays
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
            )
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        call = self._channel.unary_unary(
            method, type(request).SerializeToString, answer.FromString
        )
        return await call(request, timeout=TIMEOUT_S)

    def _failure(self, error: grpc.aio.AioRpcError) -> HostError:
        return HostError(f"the kubelet does not answer on {self._socket}: {error.details()}")

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def _holdings(answer: api.ListPodResourcesResponse) -> Iterator[Holding]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            where = pod.namespace, pod.name, container.name
            for devices in container.devices:
                yield Holding(*where, devices.resource_name, tuple(devices.device_ids))
            for claim in container.dynamic_resources:
                for device in claim.claim_resources:
                    of_claim = Claim(claim.claim_name, claim.claim_namespace, device.pool_name)
                    yield Holding(*where, device.driver_name, (device.device_name,), of_claim)


def journal_beside(socket: str) -> str:
    """Return the path of the DRA driver's journal that belongs to a socket of the kubelet."""
    return os.path.join(os.path.dirname(os.path.dirname(socket)), JOURNAL)


def claimed(journal: str, *, or_gpu: bool = False) -> dict[Claimed, str]:
    """Return the UUIDs of claims' devices from the journal of nvct's driver; {} without one.

    {} also for a malformed journal, which the driver reports.

    Args:
        or_gpu: whether to return the GPU's UUID for MIG devices that were made for a claim, whose
            own UUID is not in the journal.
    """
    try:
        folder, name = split(journal)
        with SharedFolder.open(folder) as opened:
            claims = json.loads(opened.read(name, JOURNAL_LIMIT))["claims"]
        return {
            (claim["namespace"], claim["name"], entry["device"]): entry["uuid"]
            or (entry["gpu"] if or_gpu else "")
            for claim in claims
            for entry in claim["entries"]
        }
    except (OSError, NvctError, ValueError, LookupError, TypeError, RecursionError):
        return {}
