# SPDX-License-Identifier: Apache-2.0
"""Decides who gets an answer from a server: passwords, client certificates, a limit of requests.

The web configuration is read again when one of its files has changed. One that is wrong leaves the
former one in force, and is logged once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import time
from collections.abc import Mapping
from typing import Any

from nvct.agent.core.logs import Log
from nvct.agent.web import config as web_config
from nvct.agent.web.config import WebConfig
from nvct.agent.web.turns import Turns
from nvct.errors import DocumentError

NOBODY = "$2b$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
"""Compared for users that do not exist, so that the time of an answer does not name the others."""
CACHED = 100
"""Passwords that were compared already; a comparison takes 50 ms and more."""


class WebGuard:
    """Protects one server.

    Raises:
        DocumentError: it is wrong.
    """

    def __init__(self, path: str, journal: Log) -> None:
        self._path, self._log = path, journal
        self._config = web_config.read(path)
        self._signature = self._stat()
        self._checked: dict[bytes, bool] = {}
        self._comparisons = Turns()
        self._tokens, self._at = float(self._config.burst), time.monotonic()
        if self._config.users:
            import bcrypt  # noqa: F401  an error at the start, not at the first request

    def config(self) -> WebConfig:
        """Return the configuration in force."""
        signature = self._stat()
        if signature != self._signature:
            self._signature = signature
            try:
                self._config = self._read()
            except DocumentError as error:
                self._log.error(f"{error.message}: the former web configuration stays in force")
            else:
                self._signature = self._stat()
                self._log.info("read the web configuration again")
        return self._config

    def _read(self) -> WebConfig:
        config = web_config.read(self._path)
        if (config.tls is None) is not (self._config.tls is None):
            raise DocumentError(f"{self._path} switches TLS on or off, which needs a new start")
        return config

    def _stat(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_stat(path) for path in self._config.files)

    def is_allowed_name(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return whether a client's certificate has one of the names that are asked for."""
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

        A password that was not compared before waits until it is the client's turn.
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
            finally:  # half of a CPU core is enough
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


def _stat(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
