# SPDX-License-Identifier: Apache-2.0
"""The server's side of TLS on a connection that is open already.

asyncio's own TLS begins before the server sees a connection: what a crowd of unfinished handshakes
costs would not be bounded, and each of them has a buffer of 256 KiB.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

CHUNK = 16384


class TlsStream:
    """Reads and writes like asyncio's streams, as far as the server needs it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: ssl.SSLContext,
        received: bytes,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(received)

    async def handshake(self) -> Mapping[str, Any] | None:
        """Do the handshake; return the client's certificate if it was verified.

        Raises:
            OSError: the client does not speak TLS, or has not what the context asks for.
            asyncio.IncompleteReadError: the client has closed the connection.
        """
        await self._do(self._tls.do_handshake)
        return self._tls.getpeercert()

    async def readuntil(self, separator: bytes, limit: int) -> bytes:
        """Return what the client sends up to a separator.

        Raises:
            OSError, asyncio.IncompleteReadError: as `handshake`.
            asyncio.LimitOverrunError: it is longer.
        """
        data = b""
        while separator not in data:
            if len(data) > limit:
                raise asyncio.LimitOverrunError("the request is too long", len(data))
            part = await self._do(lambda: self._tls.read(CHUNK))
            if not part:
                raise asyncio.IncompleteReadError(data, None)
            data += part
        return data

    async def write(self, data: bytes) -> None:
        """Send all data, and the end of TLS."""
        await self._do(lambda: self._tls.write(data))
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:  # the client's own end is not awaited
            await self._send()

    async def _do(self, operation: Callable[[], T]) -> T:
        while True:
            try:
                result = operation()
            except ssl.SSLWantReadError:
                await self._send()
                data = await self._reader.read(CHUNK)
                if not data:
                    raise asyncio.IncompleteReadError(b"", None) from None
                self._incoming.write(data)
            except ssl.SSLError:
                await self._send()  # the alert that tells the client why
                raise
            else:
                await self._send()
                return result

    async def _send(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()
