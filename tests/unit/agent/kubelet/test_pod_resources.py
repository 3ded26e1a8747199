# SPDX-License-Identifier: Apache-2.0
"""The kubelet's service for pods' resources: both versions, and a kubelet that does not answer."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet.pod_resources import Claim, Holding, PodResources
from nvct.errors import HostError

ANSWER = api.ListPodResourcesResponse()
ANSWER.pod_resources.add(name="train", namespace="ns").containers.add(name="main").devices.add(
    resource_name="nvidia.com/gpu", device_ids=["GPU-1"]
)
ANSWER.pod_resources.add(name="idle", namespace="ns")
HELD = (Holding("ns", "train", "main", "nvidia.com/gpu", ("GPU-1",)),)


@contextlib.asynccontextmanager
async def kubelet(
    path: Path, version: str, pods: api.ListPodResourcesResponse = ANSWER
) -> AsyncIterator[None]:
    """Serve one version on a socket."""

    async def answer(_request: Any, _context: Any) -> api.ListPodResourcesResponse:
        return pods

    method = grpc.unary_unary_rpc_method_handler(
        answer,
        api.ListPodResourcesRequest.FromString,
        api.ListPodResourcesResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(f"{version}.PodResourcesLister", {"List": method}),)
    )
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def asking(socket: Path) -> AsyncIterator[PodResources]:
    asked = PodResources(str(socket))
    try:
        yield asked
    finally:
        await asked.close()


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_both_versions_are_understood(version: str, tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    async with asking(socket) as asked, kubelet(socket, version):
        assert await asked.holdings() == HELD
        assert await asked.holdings() == HELD


async def test_claims_are_told_with_their_pools(tmp_path: Path) -> None:
    answer = api.ListPodResourcesResponse()
    container = answer.pod_resources.add(name="train", namespace="ns").containers.add(name="main")
    claim = container.dynamic_resources.add(claim_name="single", claim_namespace="ns")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n1", device_name="gpu-0")
    claimed = Holding(
        "ns", "train", "main", "gpu.nvidia.com", ("gpu-0",), Claim("single", "ns", "n1")
    )
    socket = tmp_path / "kubelet.sock"
    async with asking(socket) as asked, kubelet(socket, "v1", answer):
        assert await asked.holdings() == (claimed,)


async def test_a_kubelet_that_is_gone_is_named_and_one_that_comes_back_answers(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "kubelet.sock"
    async with asking(socket) as asked:
        for _ in range(2):  # a closed channel leaves the next one no pause
            with pytest.raises(HostError, match=f"the kubelet does not answer on {socket}"):
                await asked.holdings()
            await asked.close()
        async with kubelet(socket, "v2"):  # another service
            with pytest.raises(HostError, match="the kubelet does not answer"):
                await asked.holdings()
        await asked.close()
        async with kubelet(socket, "v1"):
            assert await asked.holdings() == HELD
