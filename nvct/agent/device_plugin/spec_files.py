# SPDX-License-Identifier: Apache-2.0
"""Has the plugin's CDI specifications written, for the strategies cdi-*.

`nvct.agent.device_plugin.specs` writes them, where the host's files are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from nvct import typed
from nvct.agent.core.logs import Log
from nvct.agent.device_plugin.resources import Resource
from nvct.agent.device_plugin.settings import CDI_GPU, Settings
from nvct.agent.host_side import Host
from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.place import Place, Signature
from nvct.agent.nvml.host_verbs import PluginSpecs, Possible, Published, Written
from nvct.errors import NvctError, UsageError
from nvct.host import discovery_options
from nvct.typed import MalformedError

MIG_MODE = "; if the GPU is in MIG mode, set mig.strategy in the chart (MIG_STRATEGY without it)"


class PluginFiles:
    """The plugin's specifications.

    `folder`: where they are written if this process writes them. `host_roots`: where the host's
    root can be mounted.
    """

    def __init__(self, folder: str, log: Log, host_roots: tuple[str, ...] = ("/",)) -> None:
        # changes when other programs' specifications do; () without CDI
        self.signature: Signature = ()
        self._folder = folder
        self._log = log
        self._host_roots = host_roots
        self._layout = ""
        self._devices: frozenset[str] = frozenset()

    async def look(self, settings: Settings, discovery: Discovery) -> None:
        """Update the signature; it stays as it was while the worker does not answer."""
        if not settings.uses_cdi:
            self.signature = ()
            return
        with contextlib.suppress(NvctError):  # the look at the machine reports it
            self.signature = await self._files(settings, discovery).ask(Published(), Signature)

    async def write(
        self, settings: Settings, discovery: Discovery, imex_channels: Sequence[int]
    ) -> tuple[str, ...]:
        """Write the specifications; return the features that have one."""
        _, warnings = discovery_options.parse(settings.cdi_feature_flags)
        request = request_of(settings, imex_channels)
        written = await self._files(settings, discovery).ask(request, Written)
        for warning in (*warnings, *written.warnings):
            self._log.warning(warning)
        self._tell_layout(written)
        self._devices = frozenset(written.devices)
        return written.features

    def unhealthy(self, resource: Resource, settings: Settings) -> dict[str, str]:
        """Return why devices whose CDI name is in no specification are unhealthy, by id."""
        if not settings.uses_cdi:
            return {}
        names = {
            device.id: device.name(settings.device_id_strategy)
            for device in resource.devices.values()
        }
        return {
            id_: f"no CDI specification has {CDI_GPU}={name}"
            + ("" if resource.devices[id_].instance else MIG_MODE)
            for id_, name in names.items()
            if name not in self._devices
        }

    async def why_not(self, settings: Settings, discovery: Discovery) -> str:
        """Return why devices cannot be offered by CDI, whatever the engine is; "" if they can."""
        return await self._files(settings, discovery).ask(Possible(), str)

    def _files(self, settings: Settings, discovery: Discovery) -> Host:
        place = Place(
            roots=discovery.roots, settings=settings, folder=self._folder,
            stat_node=discovery.stat_node, host_roots=self._host_roots,
        )  # fmt: skip
        return Host(discovery.nvml, lambda: place)

    def _tell_layout(self, written: Written) -> None:
        layout = f"by one view, as in {written.view}"
        if not written.view:
            layout = f"by a mount for each: {written.reason}"
        if layout != self._layout:
            self._layout = layout
            self._log.info(f"CDI specifications give the driver's files {layout}")


def request_of(settings: Settings, imex_channels: Sequence[int]) -> PluginSpecs:
    """Return the request for the specifications of settings; UsageError if a hook is unknown."""
    known, _ = discovery_options.parse(settings.cdi_feature_flags)
    words = {
        "ids": settings.device_id_strategy,
        "flags": sorted(known),
        "disabled_hooks": [*settings.cdi_disable_hooks],
        "features": [name for name, is_on in settings.features.items() if is_on],
        "imex_channels": [*imex_channels],
    }
    try:
        return typed.load(PluginSpecs, words, "the settings of CDI specifications")
    except MalformedError as error:
        raise UsageError(str(error)) from error
