# SPDX-License-Identifier: Apache-2.0
"""Decides who gets an answer from a server: passwords, client certificates, a limit of requests.

The web configuration is read again when one of its files has changed. If the new one is wrong,
that is logged once, and the former one stays in force.

TLS begins here, on an open connection. asyncio's own TLS begins before the server sees the
connection, so nothing would bound the number of unfinished handshakes, each with a buffer of
256 KiB.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nvct.agent.core.logs import Log
from nvct.agent.machine.folder_watch import Identity, identity
from nvct.agent.web import config as web_config
from nvct.agent.web.config import WebConfig
from nvct.agent.web.turns import Turns
from nvct.errors import DocumentError

NOBODY = "$2b$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
"""The hash for users that do not exist, so that an answer's time does not reveal who exists."""
CACHED = 100  # Results of password comparisons that are kept; a comparison takes 50 ms or more


class WebGuard:
    """Protects one server; DocumentError if the configuration is wrong."""

    def __init__(self, path: str, journal: Log) -> None:
        self._path, self._log = path, journal
        self._config = web_config.read(path)
        self._signature = self._files()
        self._checked: dict[bytes, bool] = {}
        self._comparisons = Turns()
        self._tokens, self._at = float(self._config.burst), time.monotonic()
        if self._config.users:
            import bcrypt  # noqa: F401  an error at the start, not at the first request

    def config(self) -> WebConfig:
        """Return the configuration in force."""
        signature = self._files()
        if signature != self._signature:
            self._signature = signature
            try:
                self._config = self._read()
            except DocumentError as error:
                self._log.error(f"{error.message}: the former web configuration stays in force")
            else:
                self._signature = self._files()
                self._log.info("read the web configuration again")
        return self._config

    def _read(self) -> WebConfig:
        config = web_config.read(self._path)
        if (config.tls is None) is not (self._config.tls is None):
            raise DocumentError(f"{self._path} switches TLS on or off, which needs a restart")
        return config

    def _files(self) -> list[Identity]:
        return list(map(identity, self._config.files))

    def is_allowed_name(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client's certificate has one of the allowed names."""
        names = {name for _, name in (certificate or {}).get("subjectAltName", ())}
        return not self._config.sans or bool(names & self._config.sans)

    def has_room(self) -> bool:
        """Return whether the limit of requests allows one more, and count it."""
        interval_s, burst = self._config.interval_s, self._config.burst
        if not interval_s:
            return True
        now = time.monotonic()
        self._tokens = min(burst, self._tokens + (now - self._at) / interval_s)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def is_user(self, authorization: str, client: str) -> bool:
        """Return whether the header Authorization has a user and the right password.

        A password that is not among the kept results is compared when it is the client's turn.
        """
        users = self._config.users
        if not users:
            return True
        kind, _, text = authorization.partition(" ")
        try:
            decoded = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        name, colon, password = decoded.partition(b":")
        if kind.lower() != "basic" or not colon:
            return False
        hash_ = users.get(name.decode("utf-8", "replace"))
        key = hashlib.sha256(decoded + b"\0" + (hash_ or "").encode()).digest()
        if key not in self._checked:
            await self._comparisons.take(client)
            began = time.monotonic()
            try:
                await self._compare(key, password, hash_)
            finally:  # a pause as long as the work: half of a CPU core is enough
                self._comparisons.end_later(time.monotonic() - began)
        return self._checked[key]

    async def _compare(self, key: bytes, password: bytes, hash_: str | None) -> None:
        if key in self._checked:  # another request had the same password
            return
        is_right = await asyncio.to_thread(_is_right, password, hash_ or NOBODY)
        if len(self._checked) >= CACHED:  # the right ones are few, and stay
            self._checked = {key: True for key, right in self._checked.items() if right}
        self._checked[key] = is_right and hash_ is not None


def _is_right(password: bytes, hash_: str) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password, hash_.encode())
    except ValueError:  # a password of more than 72 bytes
        return False


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
            OSError: the client does not speak TLS, or lacks what the context requires.
            asyncio.IncompleteReadError: the client has closed the connection.
        """
        await self._do(self._tls.do_handshake)
        return self._tls.getpeercert()

    async def readuntil(self, separator: bytes, limit: int) -> bytes:
        """Return what the client sends up to a separator.

        Raises:
            OSError, asyncio.IncompleteReadError: as `handshake`.
            asyncio.LimitOverrunError: there is no separator within the limit.
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
        """Send all data, and end TLS."""
        await self._do(lambda: self._tls.write(data))
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:  # do not wait for the client's close_notify
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
