# SPDX-License-Identifier: Apache-2.0
"""Program: asks container engines by CRI for name, version and configuration, and prints JSON.

It is a process of its own, so that NVML's processes do not load gRPC. It has only two requests,
and both only read.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from typing import TypeVar

import grpc
from google.protobuf.message import Message

from nvct.agent.kubelet import kubelet_pb2 as api

M = TypeVar("M", bound=Message)

SERVICE = "/runtime.v1.RuntimeService/"
LIMIT_S = 1.5  # Of a request


def ask(socket: str) -> dict[str, str]:
    """Return name, version and configuration (JSON) of the engine on a socket.

    Raises:
        grpc.RpcError: the engine does not answer, or does not speak CRI.
    """
    own = (("grpc.use_local_subchannel_pool", 1),)  # else it waits as after a failed question
    with grpc.insecure_channel(f"unix:{socket}", options=own) as channel:
        who = _call(channel, "Version", api.VersionRequest(), api.VersionResponse)
        status = _call(channel, "Status", api.StatusRequest(verbose=True), api.StatusResponse)
        return {
            "name": who.runtime_name,
            "version": who.runtime_version,
            "config": status.info.get("config", ""),
        }


def _call(channel: grpc.Channel, method: str, request: Message, answer: type[M]) -> M:
    call: grpc.UnaryUnaryMultiCallable[Message, M] = channel.unary_unary(
        f"{SERVICE}{method}", type(request).SerializeToString, answer.FromString
    )
    return call(request, timeout=LIMIT_S)


def main() -> None:
    """Ask on the sockets that the arguments name; print those that answer, by their paths."""
    engines = {}
    for socket in sys.argv[1:]:
        try:
            engines[socket] = ask(socket)
        except grpc.RpcError:
            continue
    json.dump(engines, sys.stdout)


if __name__ == "__main__":
    main()
