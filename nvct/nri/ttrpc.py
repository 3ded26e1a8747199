# SPDX-License-Identifier: Apache-2.0
"""ttrpc over NRI's multiplexed socket: two logical connections in one, a request at a time.

The frames are those of containerd/nri pkg/net/multiplex (connection and length, four bytes each,
big endian), the messages those of containerd/ttrpc (length, stream, type and flags, ten bytes).
The engine's requests come on the connection PLUGIN; ours go out on RUNTIME. Contract: blocking,
one thread; what is no message of these protocols, or is too large, ends the connection.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from socket import socket

from google.protobuf.message import DecodeError

from nvct.errors import DocumentError, HostError, NvctError, shortened, unexpected
from nvct.nri import nri_pb2 as api

PLUGIN, RUNTIME = 1, 2
PACKAGE = "nri.pkg.api.v1alpha1"
REQUEST, RESPONSE = 1, 2
MESSAGE_LIMIT = 4 << 20
"""Bytes of a message, as in ttrpc."""
FRAME = struct.Struct(">II")
HEADER = struct.Struct(">IIBB")
FRAME_LIMIT = MESSAGE_LIMIT + HEADER.size
BUFFER = 4096
"""Bytes that Go's reader takes at first, before it knows a message's length: a longer first frame
ends the connection (conn.Read of multiplex/mux.go, ENOMEM)."""
TEXT_LIMIT = 1000
"""Characters of a message in an event or a line of the log; a pod writes names of any length."""
OK, UNKNOWN, INVALID, UNIMPLEMENTED = 0, 2, 3, 12
"""Codes of gRPC's status."""

Methods = Mapping[str, Callable[[bytes], bytes]]
"""Serialized request -> serialized response, by the name of the method."""


def sentence(error: NvctError) -> str:
    """Return an error as an engine shows it in an event of the pod."""
    told = "; ".join(filter(None, (shortened(error.message, TEXT_LIMIT), error.hint)))
    return f"nvct: {told} [{error.code}]"


class Connection:
    """The connection to an engine.

    Args:
        methods: of the service Plugin.
        answered: is called once an answer has been sent.
    """

    def __init__(
        self, sock: socket, methods: Methods, answered: Callable[[], None] = lambda: None
    ) -> None:
        self._sock, self._answered = sock, answered
        self._methods = methods
        self._received = {PLUGIN: bytearray(), RUNTIME: bytearray()}
        self._stream = -1
        self._answers: dict[int, api.Answer] = {}

    def call(self, method: str, payload: bytes) -> bytes:
        """Call a method of the service Runtime; meanwhile, the engine's requests are answered.

        Raises:
            HostError: the engine refuses, or has closed the connection.
            DocumentError: it does not speak the protocol.
        """
        self._stream += 2  # a client's streams have odd numbers
        stream = self._stream
        call = api.Call(service=f"{PACKAGE}.Runtime", method=method, payload=payload)
        self._send(RUNTIME, stream, REQUEST, call.SerializeToString())
        while stream not in self._answers:
            if not self._receive():
                raise HostError(f"the engine closed the connection during {method}")
        answer = self._answers.pop(stream)
        if answer.status.code != OK:
            raise HostError(f"the engine refuses {method}: {answer.status.message}")
        return answer.payload

    def serve(self) -> None:
        """Answer requests until the engine closes the connection.

        Raises:
            HostError: the connection broke.
            DocumentError: the engine does not speak the protocol.
        """
        while self._receive():
            pass

    def _receive(self) -> bool:
        """Receive a frame and handle what is complete; return False at the end."""
        head = self._read(FRAME.size)
        if len(head) < FRAME.size:
            return False
        connection, length = FRAME.unpack(head)
        if length > FRAME_LIMIT:
            raise DocumentError(f"a frame of {length} bytes is longer than NRI allows")
        content = self._read(length)
        if len(content) < length:
            return False
        received = self._received.get(connection)
        if received is not None:  # no other connection has a meaning; Go's mux drops it, too
            received += content
            while self._take(connection, received):
                pass
        return True

    def _take(self, connection: int, received: bytearray) -> bool:
        """Handle the first message if it is complete; return whether it was."""
        if len(received) < HEADER.size:
            return False
        length, stream, kind, _ = HEADER.unpack_from(received)
        if length > MESSAGE_LIMIT:
            raise DocumentError(f"a message of {length} bytes is longer than ttrpc allows")
        end = HEADER.size + length
        if len(received) < end:
            return False
        content = bytes(received[HEADER.size : end])
        del received[:end]
        try:
            if connection == PLUGIN and kind == REQUEST:
                answer = self._answer(api.Call.FromString(content))
                self._send(PLUGIN, stream, RESPONSE, answer.SerializeToString())
                self._answered()
            elif connection == RUNTIME and kind == RESPONSE and stream == self._stream:
                self._answers[stream] = api.Answer.FromString(content)
            else:
                raise DocumentError(f"a message of type {kind} on connection {connection}")
        except DecodeError as error:
            raise DocumentError(f"a message cannot be decoded: {error}") from error
        return True

    def _answer(self, call: api.Call) -> api.Answer:
        method = self._methods.get(call.method) if call.service == f"{PACKAGE}.Plugin" else None
        if method is None:
            text = f"{call.service}/{call.method} is not implemented"
            return api.Answer(status=api.Status(code=UNIMPLEMENTED, message=text))
        try:
            return api.Answer(payload=method(call.payload))
        except DecodeError as error:
            text = f"{call.method}: the request cannot be decoded: {error}"
            return api.Answer(status=api.Status(code=INVALID, message=text))
        except NvctError as error:
            return api.Answer(status=api.Status(code=UNKNOWN, message=sentence(error)))
        except Exception as error:  # a bug fails one create, and not all by an end of the plugin
            with suppress(OSError):
                traceback.print_exc()
            told = sentence(unexpected(error))
            return api.Answer(status=api.Status(code=UNKNOWN, message=told))

    def _read(self, length: int) -> bytes:
        """Read bytes; fewer only at the end."""
        content = bytearray()
        try:
            while len(content) < length and (part := self._sock.recv(length - len(content))):
                content += part
        except OSError as error:
            raise HostError(f"the connection to the engine broke: {error.strerror}") from error
        return bytes(content)

    def _send(self, connection: int, stream: int, kind: int, content: bytes) -> None:
        if len(content) > MESSAGE_LIMIT:
            raise DocumentError(f"an answer of {len(content)} bytes is longer than ttrpc allows")
        message = HEADER.pack(len(content), stream, kind, 0) + content
        parts = [message[:BUFFER], *filter(None, [message[BUFFER:]])]
        try:
            self._sock.sendall(b"".join(FRAME.pack(connection, len(p)) + p for p in parts))
        except OSError as error:
            raise HostError(f"the connection to the engine broke: {error.strerror}") from error
