# SPDX-License-Identifier: Apache-2.0
"""The driver's two sockets: the one that the kubelet finds, and the one that it then calls."""

from __future__ import annotations

import contextlib
import glob
import os
from functools import partial

from nvct.agent.device_plugin import socket_owner
from nvct.agent.dra.devices import DRIVER
from nvct.agent.dra.settings import Settings
from nvct.agent.host_side import Host
from nvct.agent.kubelet import dra_service, service
from nvct.agent.kubelet.sockets import Sockets
from nvct.errors import HostError


class Endpoint(Sockets):
    """Serves a driver on its sockets."""

    def __init__(self, driver: dra_service.Driver, settings: Settings, host: Host) -> None:
        self._host = host  # names the process that has a socket if this one cannot see it
        suffix = f"-{settings.pod_uid}" if settings.pod_uid else ""
        self.socket = f"{settings.plugins}/{DRIVER}/dra{suffix}.sock"
        self.registration = f"{settings.registry}/{DRIVER}{suffix}-reg.sock"
        self._driver = driver
        super().__init__(self.socket, self.registration)

    async def start(self) -> None:
        """Serve on new sockets, and remove sockets that nobody serves.

        Raises:
            HostError: another driver of this name runs here, or a socket cannot be made.
        """
        await self.stop()
        await self._check_others()
        try:
            for path in self.paths:
                os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
            await self.serve(partial(dra_service.server, self._driver, DRIVER, self.socket))
        except OSError as error:
            raise HostError(f"the sockets of {DRIVER} cannot be made: {error}") from error

    async def is_alone(self) -> bool:
        """Return whether this driver serves the kubelet, and no other driver of its name does."""
        try:
            await self._check_others()
        except HostError:
            return False
        return self.owns_sockets()

    async def _check_others(self) -> None:
        """Remove sockets that nobody serves; HostError if another driver of this name serves."""
        registry, plugins = (os.path.dirname(path) for path in (self.registration, self.socket))
        served = self.paths if self.owns_sockets() else ()
        registrations = glob.glob(f"{glob.escape(registry)}/{DRIVER}*-reg.sock")
        own = glob.glob(f"{glob.escape(plugins)}/dra*.sock")
        for path in {*registrations, *own}.difference(served):
            owner = socket_owner.find(path)
            if owner is None:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            elif path in registrations and not await service.is_nvct(path, dra_service.NVCT):
                who = await socket_owner.named(owner, path, self._host.ask)
                raise HostError(
                    f"another driver {DRIVER} runs on this node: {who} serves {path}",
                    hint="remove NVIDIA's DRA driver from this node",
                )
