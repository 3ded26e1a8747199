# SPDX-License-Identifier: Apache-2.0
"""Keeps one resource registered with the kubelet.

States: absent → serving → registering → listed ⇄ lost → withdrawn; yielded if a newer instance has
put its socket in place of ours; refused while another program's plugin serves the socket.

A registration is lost when the kubelet's socket is another one, when ours is gone, and when the
kubelet ends the stream of the device list: up to Kubernetes 1.36 the end of an older stream makes
it drop the newer plugin of that resource (kubernetes#121994). It is lost, too, when the kubelet
has no device of it though it has read the list (see `served.watch_kubelet`).

If an older plugin's stream ends while the kubelet connects to a newer plugin, the kubelet forgets
the newer one without ending its stream: it offers the devices forever, even after the plugin's
end, or refuses every pod (seen on Kubernetes 1.36). No plugin notices. So a plugin that displaces
an older instance registers only when the stream of that instance has ended.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Literal, TypeAlias

import grpc

from nvct.agent.core import waiting
from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import socket_owner
from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.endpoint import Endpoint
from nvct.agent.device_plugin.resources import Content
from nvct.agent.device_plugin.socket_owner import Owner
from nvct.agent.host_side import Host
from nvct.agent.kubelet import service
from nvct.agent.machine.folder_watch import Identity, identity

State: TypeAlias = Literal[
    "absent", "serving", "registering", "listed", "lost", "withdrawn", "yielded", "refused"
]

DELAYS_S = (0.01, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each next attempt; after a registration that has lasted, the first one again."""
LASTS_S = 10.0
LISTED_S = 10.0  # How long the kubelet can take from a registration to the stream of the list
FREE_S = 40.0
"""How long another program's socket must be free before it is taken over: NVIDIA's plugin makes
its socket again up to 30 s after a restart of the kubelet."""
ENDING_S = 3.0  # How long to wait for an owner that is ending
DISPLACED_S = 0.5
"""From displacing an older instance's socket to the registration: its stream ends meanwhile."""
POLL_S = 0.1
OWNER_S = 2.0  # How often another program's socket is looked at
UNLIKE_LOOKS = 2
"""How many looks in a row must show that the kubelet has none of the devices: the first one can
come before the kubelet has read the list."""
WITHDRAWN_S = 10.0  # How long an empty list is served, so that the kubelet has read it


class Registration:
    """One resource: its endpoint, and its state with the kubelet."""

    task: asyncio.Task[None]  # runs `run`

    def __init__(
        self,
        content: Content,
        kubelet: str,  # path of the kubelet's socket; "" serves without registration
        folder: str,
        log: Log,
        counts: Counts,
        *,
        host: Host | None = None,  # names the socket's process if this one cannot see it
    ) -> None:
        self._ask = host.ask if host else None
        self.reason = ""
        # the task that withdraws it, None while it is offered
        self.leaving: asyncio.Task[None] | None = None
        # whether another instance is to take the socket, which then is not logged
        self.is_handed_over = False
        self.name = content.resource.name
        self._wake = asyncio.Event()
        self._counts = counts
        self.endpoint = Endpoint(content, folder, self._wake.set, self._counts, log)
        self._kubelet = kubelet
        self._kubelet_identity: Identity = None
        self._log = log
        self._failures = 0
        self._state: State = "absent"
        self._last_reason = ""
        self._unlike = 0
        self._is_forgotten = False

    @property
    def state(self) -> State:
        """Return its state, see the module."""
        return "withdrawn" if self.leaving else self._state

    def look(self) -> None:
        """Notice that a socket has changed; to be called several times a second."""
        if not self.endpoint.owns_sockets() or self._is_other_kubelet():
            self._wake.set()

    def compare(self, ids: Collection[str]) -> None:
        """Compare the kubelet's devices with the offered ones; to be called every few seconds.

        Another program can register this resource under another socket. It is not displaced while
        it has devices; if the kubelet has no devices, the registration is lost. `ids`: the healthy
        devices that the kubelet has of this resource.
        """
        if self._state not in ("listed", "refused") or not self.endpoint.is_listed:
            return
        content = self.endpoint.content
        offered = content.resource.devices.keys() - content.unhealthy.keys()
        is_unlike = bool(offered) and offered.isdisjoint(ids)
        self._unlike = self._unlike + 1 if is_unlike else 0
        if not is_unlike:
            self._become("listed", "")
        elif self._unlike >= UNLIKE_LOOKS and ids:
            reason = "another program has registered it with the kubelet, and is not displaced"
            self._become("refused", reason)
        elif self._unlike >= UNLIKE_LOOKS:
            self._is_forgotten = True
            self._wake.set()

    async def run(self) -> None:
        """Serve and register until canceled, or until another process owns the socket."""
        try:
            while True:
                if self.endpoint.is_taken() and await self._gives_way():
                    return
                if await self._serve() and await self._register():
                    since = time.monotonic()
                    await self._until_lost()
                    if time.monotonic() - since > LASTS_S:
                        self._failures = 0
                if self._state == "refused":
                    await self._until_free()
                else:
                    await self._pause()
        finally:
            await self.endpoint.stop()

    async def _gives_way(self) -> bool:
        """Return whether a newer instance has the socket; wait while another program has it."""
        if self.is_handed_over:
            return True
        path = self.endpoint.path
        owner = socket_owner.find(path)
        who = await socket_owner.named(owner, path, self._ask) if owner else ""
        reason = f"{who or 'another process'} has taken {path}"
        if owner is None or await service.is_nvct(path):
            self._become("yielded", reason)
            return True
        await self.endpoint.stop()
        self._become("refused", reason)
        await self._until_free()
        return False

    async def withdraw(self) -> None:
        """Offer no devices, and wait until the kubelet has read the empty list."""
        content = self.endpoint.content
        self._log.info(f"'{self.name}' is withdrawn: it no longer has devices")
        self.endpoint.update(replace(content, resource=replace(content.resource, devices={})))
        await asyncio.sleep(WITHDRAWN_S)

    async def _serve(self) -> bool:
        if self.endpoint.owns_sockets():
            return True
        path = self.endpoint.path
        owner, replaced = await _other(path)
        if owner is not None:
            who = await socket_owner.named(owner, path, self._ask)
            self._become("refused", f"{who} serves {path}, and is not displaced")
            return False
        try:
            await self.endpoint.start(replaced)
        except OSError as error:
            self._become("lost", f"it cannot be served: {error}")
            return False
        self._become("serving", "")
        self._log.info(f"Starting to serve '{self.name}' on {self.endpoint.path}")
        if replaced is not None:
            await asyncio.sleep(DISPLACED_S)
        return True

    async def _register(self) -> bool:
        """Register; return whether the kubelet has read the list."""
        if not self._kubelet:
            self._log.info("Skipping registration with Kubelet")
            return True
        self._become("registering", "")
        self._kubelet_identity = identity(self._kubelet)
        if self._kubelet_identity is None:
            self._become("lost", f"there is no {self._kubelet}: the kubelet does not run")
            return False
        self.endpoint.expect_stream()
        self._unlike, self._is_forgotten = 0, False
        self._wake.clear()
        try:
            name = os.path.basename(self.endpoint.path)
            await service.register(self._kubelet, self.name, name)
        except (grpc.RpcError, asyncio.TimeoutError) as error:
            details = getattr(error, "details", lambda: "")() or str(error)
            self._counts["registration_errors", self.name] += 1
            self._become("lost", f"the kubelet does not register it: {details}")
            return False
        self._counts["registrations", self.name] += 1
        self._log.info(f"Registered device plugin for '{self.name}' with Kubelet")
        end = time.monotonic() + LISTED_S
        while not self.endpoint.is_listed and not self._loss():
            if not await self._woken(end):
                self._become("lost", "the kubelet does not ask for the list")
                return False
        self._become("listed", "")
        return True

    async def _until_lost(self) -> None:
        while not (reason := self._loss()):
            await self._woken()
        self._counts["losses", self.name] += 1
        self._become("lost", reason)

    def _loss(self) -> str:
        if not self.endpoint.owns_sockets():
            return f"{self.endpoint.path} is gone"
        if self._is_other_kubelet():
            gone = identity(self._kubelet) is None
            return f"{self._kubelet} is gone" if gone else "the kubelet was restarted"
        if self.endpoint.has_ended:
            return "the kubelet ended the stream of the list"
        if self._is_forgotten:
            return "the kubelet has none of its devices"
        return ""

    def _is_other_kubelet(self) -> bool:
        return bool(self._kubelet) and identity(self._kubelet) != self._kubelet_identity

    async def _until_free(self) -> None:
        """Wait until nobody has served the socket for FREE_S."""
        since = time.monotonic()
        while time.monotonic() - since < FREE_S:
            await asyncio.sleep(OWNER_S)
            if socket_owner.find(self.endpoint.path) is not None:
                since = time.monotonic()

    async def _pause(self) -> None:
        """Wait before the next attempt, or until the kubelet's socket changes."""
        delay_s = DELAYS_S[min(self._failures, len(DELAYS_S) - 1)]
        self._failures += 1
        end = time.monotonic() + delay_s
        while await self._woken(end):
            if self._is_other_kubelet() and identity(self._kubelet) is not None:
                self._failures = 0
                return

    async def _woken(self, end: float | None = None) -> bool:
        """Wait until something happens; return False if `end` comes first."""
        self._wake.clear()
        left_s = None if end is None else end - time.monotonic()
        return await waiting.until_set(self._wake, left_s)

    def _become(self, state: State, reason: str) -> None:
        if reason and reason != self._last_reason:
            self._log.warning(f"'{self.name}' is {state}: {reason}")
            self._last_reason = reason
        elif state == "listed":
            self._last_reason = ""
        self._state, self.reason = state, reason


async def _other(path: str) -> tuple[Owner | None, Identity]:
    """Return the other program's process that serves a socket, None if the socket can be taken.

    Waits for an owner that is ending. An older instance of nvct's plugin gives way to a newer one;
    it is recognized by a gRPC method that no other program has.

    Returns:
        The owner, and the identity of the file that was judged.
    """
    end = time.monotonic() + ENDING_S
    while True:
        judged = identity(path)
        owner = socket_owner.find(path)
        if owner is None or owner.pid == os.getpid() or await service.is_nvct(path):
            return None, judged
        if time.monotonic() > end:
            return owner, judged
        await asyncio.sleep(POLL_S)
