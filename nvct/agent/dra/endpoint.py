# SPDX-License-Identifier: Apache-2.0
"""The driver's two sockets: the one that the kubelet finds, and the one that it then calls.

The kubelet reads its folder at its own start, and learns of new sockets by inotify. So a socket
is bound under a name that begins with a dot, which the kubelet ignores, and then renamed.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import uuid

from nvct.agent.device_plugin import socket_owner
from nvct.agent.device_plugin.endpoint import Identity, identity
from nvct.agent.dra.devices import DRIVER
from nvct.agent.host_side import Host
from nvct.agent.kubelet import dra_service, service
from nvct.agent.kubelet.dra_service import Driver
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import grpc.aio


class Endpoint:
    """Serves a driver on its sockets."""

    def __init__(
        self, driver: Driver, registry: str, plugins: str, pod_uid: str, host: Host | None = None
    ) -> None:
        # registry, plugins: the kubelet's folders of registration sockets and of plugins' files.
        # host: tells what has a socket, if this process does not see it.
        self._ask = host.ask if host else None
        suffix = f"-{pod_uid}" if pod_uid else ""
        self.socket = f"{plugins}/{DRIVER}/dra{suffix}.sock"
        self.registration = f"{registry}/{DRIVER}{suffix}-reg.sock"
        self._driver = driver
        self._server: grpc.aio.Server | None = None
        self._identities: dict[str, Identity] = {}

    def owns_sockets(self) -> bool:
        """Return whether both sockets are served and still ours."""
        return bool(self._identities) and all(
            _file(path) == known for path, known in self._identities.items()
        )

    def is_taken(self) -> bool:
        """Return whether another process has put its socket in place of one of ours."""
        return any(_file(path) not in (None, known) for path, known in self._identities.items())

    async def start(self) -> None:
        """Serve on new sockets; those that nobody serves any more are removed.

        Raises:
            HostError: another driver of this name runs here, or a socket cannot be made.
        """
        await self.stop()
        await self._check_others()
        paths = (self.socket, self.registration)
        for path in paths:
            os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
        temporary = [f"{os.path.dirname(path)}/.nvct-{uuid.uuid4().hex[:8]}" for path in paths]
        try:
            self._server = dra_service.server(self._driver, DRIVER, self.socket, temporary)
            await asyncio.shield(self._server.start())  # gRPC does not bear a cancellation
            for source, path in zip(temporary, paths, strict=True):
                os.rename(source, path)
                self._identities[path] = _file(path)
        except (OSError, RuntimeError) as error:  # gRPC's, for every failure to bind
            for source in temporary:
                with contextlib.suppress(OSError):
                    os.unlink(source)
            await self.stop()
            raise HostError(f"no socket can be made for {self.socket}: {error}") from error

    async def stop(self) -> None:
        """Remove the sockets that are still ours, the registration first, and end the server."""
        for path in reversed(self._identities):
            if _file(path) == self._identities[path]:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        self._identities = {}
        server, self._server = self._server, None
        if server is not None:
            await asyncio.shield(server.stop(None))

    async def _check_others(self) -> None:
        """Remove sockets without a process."""
        registry, plugins = (os.path.dirname(path) for path in (self.registration, self.socket))
        for path in glob.glob(f"{glob.escape(registry)}/{DRIVER}*-reg.sock"):
            owner = socket_owner.find(path)
            if owner is None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            elif not await service.is_nvct(path, dra_service.NVCT):
                who = await socket_owner.named(owner, path, self._ask)
                raise HostError(
                    f"another driver {DRIVER} runs on this node: {who} serves {path}",
                    hint="remove NVIDIA's DRA driver from this node",
                )
        for path in glob.glob(f"{glob.escape(plugins)}/dra*.sock"):
            if socket_owner.find(path) is None:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _file(path: str) -> Identity:
    """Return device and inode of a file; the inode is not used again while it is served."""
    found = identity(path)
    return found and (*found[:2], 0)
