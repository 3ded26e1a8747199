# SPDX-License-Identifier: Apache-2.0
"""Turns for work that a server does for one client at a time: each address has one in a round.

So a client that asks without end delays only itself. Another address waits for the turn in
progress, and for at most one turn of each other address.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, deque
from collections.abc import Mapping
from typing import TypeVar

Connection = TypeVar("Connection")

NETWORK = 64  # Prefix length of an IPv6 network that counts as one client


class Turns:
    """The turns of one kind of work."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_taken = False

    async def take(self, client: str) -> None:
        """Wait until it is a client's turn, which lasts until `end` is called."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn had just begun
                self.end()
            raise

    def end(self) -> None:
        """Give the turn to the next address."""
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            waits = [turn for turn in queue if not turn.done()]  # the others have gone
            if len(waits) > 1:
                self._waiting[client] = deque(waits[1:])  # after all others
            if waits:
                waits[0].set_result(None)
                return
        self._is_taken = False

    def end_later(self, seconds: float) -> None:
        """Give the turn to the next address after a pause."""
        asyncio.get_running_loop().call_later(seconds, self.end)


def client_of(peer: object) -> str:
    """Return the client that a socket's peer address counts as; "" for a Unix socket."""
    if not isinstance(peer, tuple):
        return ""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, NETWORK), strict=False))


def greediest(connections: Mapping[Connection, str]) -> Connection:
    """Return the oldest connection of the client that has the most connections."""
    counts = Counter(connections.values())
    most = max(counts.values())
    return next(one for one, client in connections.items() if counts[client] == most)
