# SPDX-License-Identifier: Apache-2.0
"""A kubelet's side of the device plugin API: accepts registrations, then calls the plugin."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from tests.peer import api

FOLDER = "/var/lib/kubelet/device-plugins"
SETTLE_S = 1.0
"""Seconds to wait for another registration before the plugin counts as registered."""
START_TIMEOUT_S = 20.0
CALL_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class Kubelet:
    """A kubelet's registration service.

    Attributes:
        registered: the registrations of plugins, as JSON data.
    """

    def __init__(self) -> None:
        """Serve in the folder of the kubelet, which must exist."""
        self.registered: list[dict[str, Any]] = []
        self._last = 0.0
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=api.message("RegisterRequest").FromString,
            response_serializer=api.message("Empty").SerializeToString,
        )  # fmt: skip
        service, method = api.REGISTER.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self._server.add_insecure_port(f"unix:{FOLDER}/kubelet.sock")
        self._server.start()

    def _register(self, request: Any, _context: object) -> Any:
        with self._lock:
            self.registered.append(api.data(request))
            self._last = time.monotonic()
        return api.message("Empty")()

    def wait(self, plugin: subprocess.Popen[bytes]) -> bool:
        """Wait for a plugin's registrations; report whether it runs and has any."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and plugin.poll() is None:
            with self._lock:
                if self.registered and time.monotonic() > self._last + SETTLE_S:
                    return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """End the service and remove its socket."""
        self._server.stop(None).wait()
        Path(FOLDER, "kubelet.sock").unlink(missing_ok=True)


class Plugin:
    """A started device plugin, which has registered or ended."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start it and wait until it has registered all its resources, or ended."""
        self._log = log
        kubelet = Kubelet()
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)
        self.serves = kubelet.wait(self._process)
        kubelet.stop()
        self.registered = sorted(kubelet.registered, key=lambda one: str(one["resource_name"]))

    def call(self, endpoint: str, method: str, request: dict[str, Any] | None = None) -> Any:
        """Return a resource's answer as JSON data, {"error": "CODE: message"} on refusal."""
        with grpc.insecure_channel(f"unix:{FOLDER}/{endpoint}") as channel:
            try:
                return api.call(channel, method, request or {}, CALL_TIMEOUT_S)
            except grpc.RpcError as error:
                return {"error": f"{error.code().name}: {error.details()}"}

    def stop(self) -> tuple[int | None, str]:
        """End it; return its exit status, None if it was still running, and its output."""
        status = self._process.poll()
        if status is None:
            os.kill(self._process.pid, signal.SIGTERM)
            self._process.wait(STOP_TIMEOUT_S)
        return status, self._log.read_text(errors="replace")
