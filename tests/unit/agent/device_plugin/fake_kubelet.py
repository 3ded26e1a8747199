# SPDX-License-Identifier: Apache-2.0
"""A kubelet's side of the device plugin API, with the rules and habits of the real ones.

- At its start it removes everything in its folder, and then makes its socket.
- It calls GetDevicePluginOptions before ListAndWatch; 1.20 does not.
- Up to 1.36, the end of a stream makes it drop the *current* plugin of that resource, also if
  that is a newer one (kubernetes#121994). One to which it is connecting then runs on unknown: at
  the end of its stream the list stays.
- It may be slow, and call a plugin by several names (the pseudo-header :authority).
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from google.protobuf import json_format
from google.protobuf.message import Message

from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet import service
from tests.support.cpu import Limit

TIMEOUT_S = 20.0


@dataclass
class Client:
    """The kubelet's connection to one plugin of a resource."""

    channel: grpc.aio.Channel
    task: asyncio.Task[None] | None = None
    is_connected: bool = False


@dataclass
class FakeKubelet:
    """A kubelet in a folder.

    Attributes:
        folder: for its socket and those of plugins.
        is_old: whether it has the habits of 1.20.
        drops: whether the end of a stream drops the current plugin.
        delay_s: until it is connected to a plugin.
        authority: how it calls a plugin; "" is gRPC's default.
        registered: the resources, as they were registered.
        lists: the last list of each resource that it did not drop.
        opened: how many streams it has opened, by resource.
    """

    folder: str
    is_old: bool = False
    drops: bool = True
    delay_s: float = 0.0
    authority: str = ""
    registered: list[api.RegisterRequest] = field(default_factory=list)
    lists: dict[str, dict[str, str]] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)
    _clients: dict[str, Client] = field(default_factory=dict)
    _every: list[Client] = field(default_factory=list)
    _server: grpc.aio.Server | None = None

    @property
    def socket(self) -> str:
        return f"{self.folder}/kubelet.sock"

    async def start(self) -> None:
        for name in os.listdir(self.folder):
            os.unlink(f"{self.folder}/{name}")
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, api.RegisterRequest.FromString, api.Empty.SerializeToString
        )
        name, method = service.REGISTER.strip("/").split("/")
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, {method: handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """End as a process does: all connections are closed; the sockets stay."""
        assert self._server
        await self._server.stop(None)
        for client in self._every:
            if client.task:
                client.task.cancel()
            await client.channel.close()
        self._every.clear()
        self._clients.clear()
        self.lists.clear()

    async def _register(self, request: api.RegisterRequest, _context: Any) -> api.Empty:
        options = [("grpc.use_local_subchannel_pool", 1)]
        more = [("grpc.default_authority", self.authority)] if self.authority else []
        path = f"unix:{self.folder}/{request.endpoint}"
        client = Client(grpc.aio.insecure_channel(path, options=[*options, *more]))
        self.registered.append(request)
        self._clients[request.resource_name] = client
        self._every.append(client)
        client.task = asyncio.create_task(self._watch(request.resource_name, client))
        return api.Empty()

    async def _watch(self, resource: str, client: Client) -> None:
        await asyncio.sleep(self.delay_s)
        client.is_connected = True
        if not self.is_old:
            await self._call(
                client, "GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions
            )
        self.opened[resource] = self.opened.get(resource, 0) + 1
        stream = client.channel.unary_stream(
            f"/{service.SERVICE}/ListAndWatch",
            api.Empty.SerializeToString,
            api.ListAndWatchResponse.FromString,
        )(api.Empty())
        try:
            async for response in stream:
                self.lists[resource] = {device.ID: device.health for device in response.devices}
        except grpc.RpcError:
            pass
        current = self._clients.get(resource)
        if current is client or (self.drops and current):
            await self.drop(resource)

    async def drop(self, resource: str) -> None:
        """Forget a resource, and close the connection to its current plugin, if there is one."""
        client = self._clients.pop(resource, None)
        self.lists.pop(resource, None)
        if client and client.is_connected:
            await client.channel.close()

    async def end_stream(self, number: int) -> None:
        """Close the connection of one registration, by its number."""
        await self._every[number].channel.close()

    async def call(self, resource: str, method: str, request: Message, answer: Any) -> Any:
        """Return the answer of a resource's current plugin as JSON data."""
        message = await self._call(self._clients[resource], method, request, answer)
        return json_format.MessageToDict(message, preserving_proto_field_name=True)

    async def _call(self, client: Client, method: str, request: Message, answer: Any) -> Any:
        call = client.channel.unary_unary(
            f"/{service.SERVICE}/{method}", type(request).SerializeToString, answer.FromString
        )
        return await call(request, timeout=TIMEOUT_S)


async def until(holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a condition holds."""
    limit = Limit(timeout_s)
    while not holds():
        assert not limit.is_over, "it does not hold in time"
        await asyncio.sleep(0.01)
