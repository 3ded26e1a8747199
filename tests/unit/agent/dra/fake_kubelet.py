# SPDX-License-Identifier: Apache-2.0
"""A kubelet's side of DRA: finds registration sockets, asks for the driver, prepares claims."""

import glob
from collections.abc import AsyncGenerator
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from nvct.agent.kubelet import dra_service
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet import kubelet_pb2 as health
from nvct.agent.kubelet import kubelet_pb2 as registration
from nvct.agent.kubelet.dra_service import ClaimRef, PreparedDevice

TIMEOUT_S = 20.0
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
"""Channels to one socket share a connection otherwise, and its pause after a refused attempt: a driver that
starts again and again meets pauses of up to two minutes."""


class RefusedError(Exception):
    """The driver's answer for a claim is an error."""


class FakeKubelet:
    """Calls the driver whose registration socket is in a folder.

    Attributes:
        version: of the driver's service that it knows.
    """

    def __init__(self, registry: str, version: str = "v1", root: str = "") -> None:
        """Look for sockets in a folder; `root` is that of the machine with the driver."""
        self.version = version
        self._registry = f"{root}{registry}"
        self._root = root

    def sockets(self) -> list[str]:
        """Return the sockets that a kubelet sees: no name with a dot at its start."""
        return sorted(glob.glob(f"{self._registry}/*.sock"))

    async def register(self, error: str = "") -> registration.PluginInfo:
        """Ask the driver what it is, and tell it that it is registered, or why not."""
        (socket,) = self.sockets()
        info: registration.PluginInfo = await _call(
            socket, f"/{dra_service.REGISTRATION}/GetInfo", registration.InfoRequest(),
            registration.PluginInfo,
        )  # fmt: skip
        assert info.type == "DRAPlugin"
        endpoint = f"{self._root}{info.endpoint}"
        assert endpoint in glob.glob(glob.escape(endpoint))
        assert f"{self.version}.DRAPlugin" in info.supported_versions
        await _call(
            socket, f"/{dra_service.REGISTRATION}/NotifyRegistrationStatus",
            registration.RegistrationStatus(plugin_registered=not error, error=error),
            registration.RegistrationStatusResponse,
        )  # fmt: skip
        self._endpoint = endpoint
        return info

    async def prepare(self, ref: ClaimRef) -> list[PreparedDevice]:
        """Prepare a claim, and return its devices, or raise RefusedError."""
        request = api.NodePrepareResourcesRequest(claims=[_claim(ref)])
        answer: api.NodePrepareResourcesResponse = await self._ask(
            "NodePrepareResources", request, api.NodePrepareResourcesResponse
        )
        assert list(answer.claims) == [ref.uid]
        of_claim = answer.claims[ref.uid]
        if of_claim.error:
            raise RefusedError(of_claim.error)
        return [
            PreparedDevice(
                requests=tuple(one.request_names),
                pool=one.pool_name,
                device=one.device_name,
                cdi=tuple(one.cdi_device_ids),
                share=one.share_id,
            )
            for one in of_claim.devices
        ]

    async def watch_health(self) -> AsyncGenerator[dict[str, str], None]:
        """Yield the devices with the message of each that is unhealthy, again after changes."""
        path = f"unix:{self._endpoint}"
        async with grpc.aio.insecure_channel(path, options=OWN_CONNECTION) as channel:
            watch = channel.unary_stream(
                f"/{dra_service.HEALTH}/NodeWatchResources",
                health.NodeWatchResourcesRequest.SerializeToString,
                health.NodeWatchResourcesResponse.FromString,
            )
            async for answer in watch(health.NodeWatchResourcesRequest()):
                assert all(one.health != health.UNKNOWN for one in answer.devices)
                assert all(
                    bool(one.message) == (one.health == health.UNHEALTHY) for one in answer.devices
                )
                yield {one.device.device_name: one.message for one in answer.devices}

    async def unprepare(self, ref: ClaimRef) -> None:
        """Unprepare a claim, or raise RefusedError."""
        request = api.NodeUnprepareResourcesRequest(claims=[_claim(ref)])
        answer: api.NodeUnprepareResourcesResponse = await self._ask(
            "NodeUnprepareResources", request, api.NodeUnprepareResourcesResponse
        )
        assert list(answer.claims) == [ref.uid]
        if answer.claims[ref.uid].error:
            raise RefusedError(answer.claims[ref.uid].error)

    async def _ask(self, name: str, request: Message, answer: Any) -> Any:
        return await _call(
            self._endpoint,
            f"/k8s.io.kubelet.pkg.apis.dra.{self.version}.DRAPlugin/{name}",
            request,
            answer,
        )


def _claim(ref: ClaimRef) -> api.Claim:
    return api.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


async def _call(socket: str, method: str, request: Message, answer: Any) -> Any:
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=OWN_CONNECTION) as channel:
        call = channel.unary_unary(method, type(request).SerializeToString, answer.FromString)
        return await call(request, timeout=TIMEOUT_S)
