# SPDX-License-Identifier: Apache-2.0
"""gRPC servers for the kubelet, and the device plugin API: the methods of a plugin, registration.

The method tables are not generated, because a generated one refuses a gRPC that is older than the
generator.
"""

from __future__ import annotations

import os

# gRPC's handlers of fork(2) stop its threads; the agent does not fork after it has loaded gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio

from nvct.agent.kubelet import kubelet_pb2 as api

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Server: TypeAlias = grpc.aio.Server

VERSION = "v1beta1"
SERVICE = f"{VERSION}.DevicePlugin"
REGISTER = f"/{VERSION}.Registration/Register"
NVCT = "nvct.DevicePlugin"  # A service of nvct's plugins only: they recognize each other by it
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
DIAL_S = 5.0
IDENTIFY_S = 1.0
OPTIONS = (("grpc.so_reuseport", 0), ("grpc.use_local_subchannel_pool", 1))


def unary(work: Any, request: Any, answer: Any) -> Handler:  # noqa: ANN401 - classes of protobuf
    """Return the handler of a method with one answer."""
    return grpc.unary_unary_rpc_method_handler(work, request.FromString, answer.SerializeToString)


def stream(work: Any, request: Any, answer: Any) -> Handler:  # noqa: ANN401 - same
    """Return the handler of a method with many answers."""
    return grpc.unary_stream_rpc_method_handler(work, request.FromString, answer.SerializeToString)


def bound(
    services: Mapping[str, dict[str, Handler]], own: str, sockets: Iterable[str]
) -> grpc.aio.Server:
    """Return a server of some services that is bound to sockets, and not started.

    `own`: the service by which other programs of nvct recognize this one, see `is_nvct`.
    """
    made = grpc.aio.server(options=OPTIONS)
    identity = {"Identify": unary(_identify, api.Empty, api.Empty)}
    made.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, methods)
            for name, methods in {**services, own: identity}.items()
        )
    )
    for socket in sockets:
        made.add_insecure_port(f"unix:{socket}")
    return made


async def register(socket: str, resource: str, endpoint: str) -> None:
    """Register a resource with the kubelet.

    Args:
        endpoint: the name of the plugin's socket, in the folder of the kubelet's socket.

    Raises:
        grpc.RpcError: the kubelet does not answer, or refuses.
    """
    request = api.RegisterRequest(
        version=VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=api.DevicePluginOptions(get_preferred_allocation_available=True),
    )
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
        call = channel.unary_unary(
            REGISTER, api.RegisterRequest.SerializeToString, api.Empty.FromString
        )
        await call(request, timeout=DIAL_S, wait_for_ready=False)


async def is_nvct(socket: str, own: str = NVCT) -> bool:
    """Return whether a program of nvct serves a socket; False also if nobody answers."""
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS) as channel:
        call = channel.unary_unary(
            f"/{own}/Identify", api.Empty.SerializeToString, api.Empty.FromString
        )
        try:
            await call(api.Empty(), timeout=IDENTIFY_S)
        except grpc.RpcError:
            return False
        return True


async def _identify(_request: api.Empty, _context: Context) -> api.Empty:
    return api.Empty()
