# SPDX-License-Identifier: Apache-2.0
"""ttrpc over NRI's multiplexed socket: two logical connections in one, a request at a time.

The frames are those of containerd/nri pkg/net/multiplex (connection and length, four bytes each,
big endian), the messages those of containerd/ttrpc (length, stream, type and flags, ten bytes).
The engine's requests come on the connection PLUGIN; ours go out on RUNTIME. Contract: blocking,
one thread; a message that is malformed or too large ends the connection.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from socket import socket

from google.protobuf.message import DecodeError

from nvct.errors import DocumentError, HostError, NvctError, shortened, unexpected
from nvct.nri import nri_pb2 as api

PLUGIN, RUNTIME = 1, 2
PACKAGE, REGISTER = "nri.pkg.api.v1alpha1", "RegisterPlugin"
REQUEST, RESPONSE = 1, 2
MESSAGE_LIMIT = 4 << 20
"""Bytes of a message, as in ttrpc."""
FRAME = struct.Struct(">II")
HEADER = struct.Struct(">IIBB")
FRAME_LIMIT = MESSAGE_LIMIT + HEADER.size
BUFFER = 4096
"""Bytes that Go's reader takes before it knows a message's length: a longer first frame ends the
connection (conn.Read of multiplex/mux.go, ENOMEM)."""
TEXT_LIMIT = 1000
"""Characters of a message in an event or a line of the log; a pod can have names of any length."""
UNKNOWN, INVALID, UNIMPLEMENTED = 2, 3, 12
"""Codes of gRPC's status."""

Methods = Mapping[str, Callable[[bytes], bytes]]
"""Serialized request -> serialized response, by the name of the method."""


def sentence(error: NvctError) -> str:
    """Return the text of an error, which the engine shows in an event of the pod."""
    text = "; ".join(filter(None, (shortened(error.message, TEXT_LIMIT), error.hint)))
    return f"nvct: {text} [{error.code}]"


class Connection:
    """The connection to an engine; `answered` is called once an answer has been sent."""

    def __init__(
        self, sock: socket, methods: Methods, answered: Callable[[], None] = lambda: None
    ) -> None:
        self._sock, self._methods, self._answered = sock, methods, answered
        self._registers = False

    def register(self, name: str, index: str) -> None:
        """Ask the engine for the plugin's registration; `serve` gets the answer."""
        request = api.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        payload = request.SerializeToString()
        call = api.Call(service=f"{PACKAGE}.Runtime", method=REGISTER, payload=payload)
        self._registers = True
        self._send(RUNTIME, 1, REQUEST, call)

    def serve(self) -> None:
        """Answer requests until the engine closes the connection.

        Raises:
            HostError: the connection broke, or the engine refuses the plugin.
            DocumentError: the engine does not speak the protocol.
        """
        for connection, stream, kind, content in self._messages():
            try:
                if connection == PLUGIN and kind == REQUEST:
                    self._send(PLUGIN, stream, RESPONSE, self._answer(content))
                    self._answered()
                elif connection == RUNTIME and kind == RESPONSE and self._registers:
                    self._registers = False
                    status = api.Answer.FromString(content).status
                    if status.code:
                        raise HostError(f"the engine refuses {REGISTER}: {status.message}")
                else:
                    text = f"unexpected message of type {kind} on connection {connection}"
                    raise DocumentError(text)
            except DecodeError as error:
                raise DocumentError(f"a message cannot be decoded: {error}") from error
        if self._registers:
            raise HostError(f"the engine closed the connection during {REGISTER}")

    def _messages(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield connection, stream, type and content of each message until the end."""
        received = {PLUGIN: bytearray(), RUNTIME: bytearray()}
        while len(head := self._read(FRAME.size)) == FRAME.size:
            connection, length = FRAME.unpack(head)
            if length > FRAME_LIMIT:
                raise DocumentError(f"a frame of {length} bytes is longer than NRI allows")
            content = self._read(length)
            if connection not in received:  # unknown: Go's mux drops it, too
                continue
            buffer = received[connection]
            buffer += content
            while len(buffer) >= HEADER.size:
                length, stream, kind, _ = HEADER.unpack_from(buffer)
                if length > MESSAGE_LIMIT:
                    raise DocumentError(f"a message of {length} bytes is longer than ttrpc allows")
                if len(buffer) < HEADER.size + length:
                    break
                message = bytes(buffer[HEADER.size : HEADER.size + length])
                del buffer[: HEADER.size + length]
                yield connection, stream, kind, message

    def _answer(self, content: bytes) -> api.Answer:
        call = api.Call.FromString(content)
        method = self._methods.get(call.method) if call.service == f"{PACKAGE}.Plugin" else None
        try:
            if method is not None:
                return api.Answer(payload=method(call.payload))
            code, text = UNIMPLEMENTED, f"{call.service}/{call.method} is not implemented"
        except DecodeError as error:
            code, text = INVALID, f"{call.method}: the request cannot be decoded: {error}"
        except NvctError as error:
            code, text = UNKNOWN, sentence(error)
        except Exception as error:  # a bug fails one create, but does not end the plugin
            with suppress(OSError):
                traceback.print_exc()
            code, text = UNKNOWN, sentence(unexpected(error))
        return api.Answer(status=api.Status(code=code, message=text))

    def _read(self, length: int) -> bytes:
        """Return so many bytes; fewer only at the end of the connection."""
        content = bytearray()
        try:
            while len(content) < length and (part := self._sock.recv(length - len(content))):
                content += part
        except OSError as error:
            raise HostError(f"the connection to the engine broke: {error.strerror}") from error
        return bytes(content)

    def _send(
        self, connection: int, stream: int, kind: int, content: api.Call | api.Answer
    ) -> None:
        payload = content.SerializeToString()
        if len(payload) > MESSAGE_LIMIT:
            raise DocumentError(f"an answer of {len(payload)} bytes is longer than ttrpc allows")
        message = HEADER.pack(len(payload), stream, kind, 0) + payload
        parts = [message[:BUFFER], *filter(None, [message[BUFFER:]])]
        try:
            self._sock.sendall(b"".join(FRAME.pack(connection, len(p)) + p for p in parts))
        except OSError as error:
            raise HostError(f"the connection to the engine broke: {error.strerror}") from error
