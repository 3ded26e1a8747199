# SPDX-License-Identifier: Apache-2.0
"""A resource that another program takes under another socket: the kubelet alone tells."""

import asyncio
import contextlib
import io
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import grpc.aio
import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import served
from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.endpoint import Endpoint
from nvct.agent.device_plugin.resources import GPU, Device
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet import service
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until
from tests.unit.agent.device_plugin.test_registration import Running, content, started


@pytest.fixture
def root() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # a socket's path is short
        os.mkdir(f"{path}/device-plugins")
        os.mkdir(f"{path}/pod-resources")
        yield path


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "KUBELET_S", 0.1)


@contextlib.asynccontextmanager
async def pod_resources(kubelet: FakeKubelet, root: str) -> AsyncIterator[None]:
    """Serve the kubelet's own list: the healthy devices of each resource."""

    async def answer(_request: Any, _context: Any) -> api.AllocatableResourcesResponse:
        response = api.AllocatableResourcesResponse()
        for name, devices in kubelet.lists.items():
            for id_ in (id_ for id_, health in devices.items() if health == service.HEALTHY):
                response.devices.add(resource_name=name, device_ids=[id_])
        return response

    method = grpc.unary_unary_rpc_method_handler(
        answer,
        api.AllocatableResourcesRequest.FromString,
        api.AllocatableResourcesResponse.SerializeToString,
    )
    methods = {"GetAllocatableResources": method}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods),)
    )
    server.add_insecure_port(f"unix:{root}/pod-resources/kubelet.sock")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def watched(kubelet: FakeKubelet, root: str) -> AsyncIterator[Running]:
    """Run a registration that is compared with the kubelet's list."""
    async with started(kubelet), Running(kubelet.socket, kubelet.folder) as running:
        log = Log(target=io.StringIO())
        watch = asyncio.create_task(
            served.watch_kubelet(
                kubelet.socket, lambda: {running.registration.name: running.registration}, log
            )
        )
        try:
            await until(lambda: running.registration.state == "listed")
            yield running
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


@contextlib.asynccontextmanager
async def stranger(kubelet: FakeKubelet) -> AsyncIterator[None]:
    """Another program's plugin of the same resource, under another socket."""
    other = Device(id="other", uuid="other", gpu="other", index="0")
    ours = content()
    theirs = replace(ours, resource=replace(ours.resource, devices={"other": other}))
    endpoint = Endpoint(theirs, kubelet.folder, lambda: None, Counts(), Log())
    endpoint.paths = (f"{kubelet.folder}/stranger.sock",)
    await endpoint.start(None)
    await service.register(kubelet.socket, GPU, "stranger.sock")
    try:
        yield
    finally:
        await endpoint.stop()


async def test_it_waits_for_another_program_and_registers_again_after_its_end(root: str) -> None:
    kubelet = FakeKubelet(f"{root}/device-plugins", drops=False)

    async with pod_resources(kubelet, root), watched(kubelet, root) as running:
        async with stranger(kubelet):
            await until(lambda: list(kubelet.lists.get(GPU, ())) == ["other"])
            await until(lambda: running.registration.state == "refused")
            assert "another program has registered it" in running.registration.reason
            await asyncio.sleep(0.5)
            assert list(kubelet.lists[GPU]) == ["other"], "it displaces a living plugin"
        await until(lambda: len(kubelet.lists.get(GPU, ())) == 2)
        await until(lambda: running.registration.state == "listed")
        assert "the kubelet has none of its devices" in running.log.getvalue()


async def test_what_the_kubelet_has_is_not_registered_again(root: str) -> None:
    """Nor is a resource without a healthy device, of which the kubelet has none."""
    kubelet = FakeKubelet(f"{root}/device-plugins")

    async with pod_resources(kubelet, root), watched(kubelet, root) as running:
        await asyncio.sleep(0.5)
        sick = replace(content(), unhealthy={"GPU-0": "XID 79", "GPU-1": "XID 79"})
        running.registration.endpoint.update(sick)
        await asyncio.sleep(0.5)
        assert (running.registration.state, len(kubelet.registered)) == ("listed", 1)
