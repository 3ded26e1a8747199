# SPDX-License-Identifier: Apache-2.0
"""Offers GPUs in a pod as NVIDIA's device plugin 0.20.0 (1b826acc) did on 2026-11-27.

At its start it removes whatever is at its socket's path, at its end that path; it registers once,
offers UUIDs, and answers with `NVIDIA_VISIBLE_DEVICES`. Its arguments are the UUIDs.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet import service

SOCKET = f"{FOLDER}/nvidia-gpu.sock"


async def _list(_request: api.Empty, _context: object) -> AsyncIterator[api.ListAndWatchResponse]:
    devices = [api.Device(ID=uuid, health=service.HEALTHY) for uuid in sys.argv[1:]]
    yield api.ListAndWatchResponse(devices=devices)
    await asyncio.Event().wait()


async def _allocate(request: api.AllocateRequest, _context: object) -> api.AllocateResponse:
    response = api.AllocateResponse()
    for container in request.container_requests:
        envs = {"NVIDIA_VISIBLE_DEVICES": ",".join(container.devices_ids)}
        response.container_responses.add(envs=envs)
    return response


async def _options(_request: api.Empty, _context: object) -> api.DevicePluginOptions:
    return api.DevicePluginOptions(get_preferred_allocation_available=True)


async def _prefer(
    request: api.PreferredAllocationRequest, _context: object
) -> api.PreferredAllocationResponse:
    response = api.PreferredAllocationResponse()
    for container in request.container_requests:
        ids = container.available_deviceIDs[: container.allocation_size]
        response.container_responses.add(deviceIDs=ids)
    return response


async def _main() -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)
    methods = {
        "GetDevicePluginOptions": service.unary(_options, api.Empty, api.DevicePluginOptions),
        "ListAndWatch": service.stream(_list, api.Empty, api.ListAndWatchResponse),
        "GetPreferredAllocation": service.unary(
            _prefer, api.PreferredAllocationRequest, api.PreferredAllocationResponse
        ),
        "Allocate": service.unary(_allocate, api.AllocateRequest, api.AllocateResponse),
    }
    server = service.bound({service.SERVICE: methods}, "others.DevicePlugin", [SOCKET])
    await server.start()
    await service.register(f"{FOLDER}/kubelet.sock", GPU, os.path.basename(SOCKET))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(None)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(SOCKET)


if __name__ == "__main__":
    asyncio.run(_main())
