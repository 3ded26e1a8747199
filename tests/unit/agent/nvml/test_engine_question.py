# SPDX-License-Identifier: Apache-2.0
"""The container engine is asked on its socket, by a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from nvct.agent.kubelet import cri_pb2 as api
from nvct.agent.nvml import engine_question
from nvct.agent.nvml.client import NvmlClient
from tests.unit.agent.machines import Supervisor

CONFIG = json.dumps({"enableCDI": True})


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        yield Path(folder)


@contextlib.contextmanager
def engine(socket: Path) -> Iterator[None]:
    """Serve the CRI of a containerd."""
    socket.parent.mkdir(parents=True)
    unary = grpc.unary_unary_rpc_method_handler
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Version": unary(
            lambda _request, _context: api.VersionResponse(
                runtime_name="containerd", runtime_version="1.7.24"
            ),
            api.VersionRequest.FromString,
            api.VersionResponse.SerializeToString,
        ),
        "Status": unary(
            lambda request, _context: api.StatusResponse(
                info={"config": CONFIG} if request.verbose else {}
            ),
            api.StatusRequest.FromString,
            api.StatusResponse.SerializeToString,
        ),
    }
    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", methods)
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def test_the_agent_asks_through_its_supervisor(root: Path) -> None:
    socket = root / "run/containerd/containerd.sock"
    (root / "run/crio").mkdir(parents=True)
    (root / "run/crio/crio.sock").touch()  # no socket

    supervisor = Supervisor(HOST_ROOT_MOUNT=str(root))

    async def ask() -> object:
        client = NvmlClient(supervisor.connection)
        try:
            return await client.engine()
        finally:
            client.disconnect()
            assert supervisor.ended() == 0

    with engine(socket):
        answer = asyncio.run(ask())

    told = {"name": "containerd", "version": "1.7.24", "config": CONFIG}
    assert answer == {str(socket): told}


def test_without_an_engine_there_is_no_answer(root: Path) -> None:
    assert engine_question.ask([str(root)]) == {}


def test_the_roots_are_those_that_exist(root: Path) -> None:
    env = {"HOST_ROOT_MOUNT": "/nowhere", "DRIVER_ROOT_CTR_PATH": str(root)}

    assert engine_question.roots(env) == [str(root), "/"]
