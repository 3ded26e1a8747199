# SPDX-License-Identifier: Apache-2.0
"""The server of one resource: its socket, its answers, the streams of its device list."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import allocate, preferred
from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.resources import Content
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet import service
from nvct.agent.kubelet.service import Context
from nvct.agent.kubelet.sockets import Sockets
from nvct.agent.machine.folder_watch import Identity, identity
from nvct.errors import NvctError

TASK = "device-plugin"


def listing(content: Content) -> api.ListAndWatchResponse:
    """Return the list of devices for the kubelet."""
    response = api.ListAndWatchResponse()
    for id_, device in content.resource.devices.items():
        health = service.UNHEALTHY if id_ in content.unhealthy else service.HEALTHY
        entry = response.devices.add(ID=id_, health=health)
        if device.numa is not None:
            entry.topology.nodes.add(ID=device.numa)
    return response


class Endpoint(Sockets):
    """Serves one resource on a socket in the kubelet's folder."""

    def __init__(
        self,
        content: Content,
        folder: str,
        wake: Callable[[], None],  # called when a stream begins or ends
        counts: Counts,
        log: Log,
    ) -> None:
        super().__init__(f"{folder}/{content.resource.endpoint}")
        self.is_listed = False  # whether the kubelet has read the list since the last registration
        self.has_ended = False  # whether it has closed all streams that it opened since then
        self.content = content
        self._wake = wake
        self._counts = counts
        self._log = log
        self._changed = asyncio.Event()
        self._registration = 0
        self._streams = 0

    @property
    def path(self) -> str:
        """Return the path of the socket."""
        return self.paths[0]

    def update(self, content: Content) -> None:
        """Serve this content from now on; the kubelet gets its list."""
        self.content = content
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def start(self, replaced: Identity) -> None:
        """Serve on a new socket.

        OSError if the socket cannot be made, or another one is there. `replaced`: the identity of
        the socket that it can displace, None if there is none.
        """
        await self.serve(self._server_on, lambda path: identity(path) in (None, replaced))

    def _server_on(self, sockets: Sequence[str]) -> service.Server:
        unary = service.unary
        methods = {
            "GetDevicePluginOptions": unary(self.options, api.Empty, api.DevicePluginOptions),
            "ListAndWatch": service.stream(
                self.list_and_watch, api.Empty, api.ListAndWatchResponse
            ),
            "GetPreferredAllocation": unary(
                self.preferred, api.PreferredAllocationRequest, api.PreferredAllocationResponse
            ),
            "Allocate": unary(self.allocate, api.AllocateRequest, api.AllocateResponse),
            "PreStartContainer": unary(
                _pre_start, api.PreStartContainerRequest, api.PreStartContainerResponse
            ),
        }
        return service.bound({service.SERVICE: methods}, service.NVCT, sockets)

    def expect_stream(self) -> None:
        """Forget the streams of earlier registrations: their end no longer matters."""
        self._registration += 1
        self._streams = 0
        self.is_listed = self.has_ended = False

    async def options(self, _request: api.Empty, _context: Context) -> api.DevicePluginOptions:
        """Answer GetDevicePluginOptions."""
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def list_and_watch(
        self, _request: api.Empty, _context: Context
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """Answer ListAndWatch."""
        registration = self._registration
        self._streams += 1
        try:
            while True:
                changed = self._changed
                yield listing(self.content)
                if registration == self._registration and not self.is_listed:
                    self.is_listed = True
                    self._wake()
                await changed.wait()
        finally:
            if registration == self._registration:
                self._streams -= 1
                self.has_ended = not self._streams
                self._wake()

    async def preferred(
        self, request: api.PreferredAllocationRequest, _context: Context
    ) -> api.PreferredAllocationResponse:
        """Answer GetPreferredAllocation."""
        content, response = self.content, api.PreferredAllocationResponse()
        for container in request.container_requests:
            ids = preferred.preferred(
                content.resource,
                container.available_deviceIDs,
                container.must_include_deviceIDs,
                container.allocation_size,
                content.scores,
                policy=content.settings.shared_devices_allocation_policy,
            )
            response.container_responses.add(deviceIDs=ids)
        return response

    async def allocate(
        self, request: api.AllocateRequest, context: Context
    ) -> api.AllocateResponse:
        """Answer Allocate."""
        content, response = self.content, api.AllocateResponse()
        try:
            await content.look()
            content = self.content
            for container in request.container_requests:
                allocate.check(content.resource, container.devices_ids, content.settings)
            content.mode.grant(_gpus(content, request))
        except NvctError as error:
            self._counts["allocation_errors", content.resource.name] += 1
            self._log.refused(TASK, content.resource.name, error)
            await context.abort(grpc.StatusCode.UNKNOWN, error.message)
        for container in request.container_requests:
            self._counts["allocations", content.resource.name] += 1
            ids = ", ".join(container.devices_ids)
            self._log.decided(TASK, "given", content.resource.name, asked=ids)
            response.container_responses.append(
                allocate.answer(
                    content.resource,
                    container.devices_ids,
                    content.settings,
                    content.node,
                    os.urandom(16).hex(),
                )
            )
        return response


def _gpus(content: Content, request: api.AllocateRequest) -> set[str]:
    """Return the UUIDs of the GPUs of the devices that a pod's containers get."""
    ids = {id_ for container in request.container_requests for id_ in container.devices_ids}
    return {content.resource.devices[id_].gpu for id_ in ids}


async def _pre_start(
    _request: api.PreStartContainerRequest, _context: Context
) -> api.PreStartContainerResponse:
    return api.PreStartContainerResponse()
