# SPDX-License-Identifier: Apache-2.0
"""An engine's end of NRI, as containerd's adaptation speaks it; the plugin runs in a thread."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message

from nvct.errors import NvctError
from nvct.nri import nri_pb2 as api
from nvct.nri.main import serve
from nvct.nri.plugin import Plugin
from nvct.nri.ttrpc import (
    BUFFER,
    FRAME,
    HEADER,
    PACKAGE,
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
)

Answer = TypeVar("Answer", bound=Message)


class RefusedError(Exception):
    """An answer with an error."""


class FakeEngine:
    """An engine that has accepted a plugin's connection.

    Attributes:
        registered: what the plugin said of itself.
        frames: the sizes of the frames of its last answer.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.registered = api.RegisterPluginRequest()
        self.frames: list[int] = []
        self._stream = -1
        self._buffers = {PLUGIN: b"", RUNTIME: b""}

    def start(
        self,
        name: str = "containerd",
        version: str = "2.2.2",
        *,
        refuses: int = 0,
        pods: Sequence[api.PodSandbox] = (),
        containers: Sequence[api.Container] = (),
    ) -> int:
        """Register, configure and synchronize the plugin, in pieces; return its events.

        Args:
            refuses: events that this engine does not know: it closes the connection then.
        """
        stream, content = self._message(RUNTIME)
        call = api.Call.FromString(content)
        assert (call.service, call.method) == (f"{PACKAGE}.Runtime", "RegisterPlugin")
        self.registered = api.RegisterPluginRequest.FromString(call.payload)
        self.send(RUNTIME, stream, RESPONSE, api.Answer().SerializeToString())
        configure = api.ConfigureRequest(runtime_name=name, runtime_version=version)
        events = self.ask("Configure", configure, api.ConfigureResponse).events
        if events & refuses:
            self.sock.close()
            return events
        for synchronize in (
            api.SynchronizeRequest(containers=containers, more=True),
            api.SynchronizeRequest(pods=pods),
        ):
            answer = self.ask("Synchronize", synchronize, api.SynchronizeResponse)
            assert answer.more == synchronize.more
        return events

    def answer_registration(self, answer: api.Answer) -> None:
        """Answer the whole of the plugin's first message."""
        stream, _ = self._message(RUNTIME)
        self.send(RUNTIME, stream, RESPONSE, answer.SerializeToString())

    def ask(self, method: str, request: Message, answer: type[Answer]) -> Answer:
        """Call a method of the plugin."""
        self._stream += 2
        call = api.Call(
            service=f"{PACKAGE}.Plugin", method=method, payload=request.SerializeToString()
        )
        self.send(PLUGIN, self._stream, REQUEST, call.SerializeToString())
        stream, content = self._message(PLUGIN)
        assert stream == self._stream
        found = api.Answer.FromString(content)
        if found.status.code:
            raise RefusedError(found.status.message)
        return answer.FromString(found.payload)

    def send(self, connection: int, stream: int, kind: int, content: bytes) -> None:
        """Send a message in two frames."""
        message = HEADER.pack(len(content), stream, kind, 0) + content
        for part in (message[:7], message[7:]):
            self.sock.sendall(FRAME.pack(connection, len(part)) + part)

    def _message(self, connection: int) -> tuple[int, bytes]:
        self.frames = []
        while True:
            buffer = self._buffers[connection]
            if len(buffer) >= HEADER.size:
                length, stream, _, _ = HEADER.unpack_from(buffer)
                if len(buffer) >= HEADER.size + length:
                    self._buffers[connection] = buffer[HEADER.size + length :]
                    return stream, buffer[HEADER.size : HEADER.size + length]
            came, size = FRAME.unpack(self._read(FRAME.size))
            assert size <= BUFFER or buffer, "Go's reader would end the connection"
            self.frames.append(size)
            self._buffers[came] += self._read(size)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.sock.recv(size - len(content))
            assert part, "the plugin has closed the connection"
            content += part
        return content


@contextmanager
def connected(plugin: Plugin, problems: list[NvctError] | None = None) -> Iterator[FakeEngine]:
    """Yield an engine that a plugin has connected to; the plugin ends with the block.

    Args:
        problems: gets the error that ended the plugin.
    """
    ours, theirs = socket.socketpair()

    def run() -> None:
        try:
            serve(lambda: theirs, plugin, "10", "nvct")
        except NvctError as error:
            if problems is not None:
                problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    ours.settimeout(10)
    try:
        yield FakeEngine(ours)
    finally:
        ours.close()
        thread.join(10)
        assert not thread.is_alive()
