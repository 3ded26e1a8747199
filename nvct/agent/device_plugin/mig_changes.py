# SPDX-License-Identifier: Apache-2.0
"""Keeps pods from MIG devices that are being changed: they are unhealthy meanwhile.

The agent's MIG manager and the command `nvct mig` announce their changes (`nvct.mig.pause`).
After a change, devices stay unhealthy until the plugin has looked at the machine again, because
some of them may be gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nvct.agent.device_plugin.resources import Resource
from nvct.agent.machine.folder_watch import FolderWatch
from nvct.mig import pause
from nvct.mig.pause import Paused
from nvct.paths import AGENT_DIR

LOOK_S = 0.2
"""How often the announcement is read while there is one, or where inotify does not report it."""
REASON = "MIG devices of this GPU are being changed"


class MigChanges:
    """The changes of MIG that are announced now, or have `ended` since the last look."""

    def __init__(self, changed: Callable[[], None], folder: str = AGENT_DIR) -> None:
        self._changed = changed
        self._folder = folder
        self._paused: Paused = {}
        self.ended: Paused = {}

    async def watch(self) -> None:
        """Look at the announcement until canceled."""
        with FolderWatch() as changes:
            while True:
                paused = pause.read(self._folder)
                if paused != self._paused:
                    self.ended = {**self.ended, **self._paused}
                    self._paused = paused
                    self._changed()
                if paused:  # inotify does not report that the writer was killed
                    await asyncio.sleep(LOOK_S)
                else:
                    await changes.wait([self._folder], LOOK_S)

    def looked(self, ended: Paused) -> None:
        """Forget changes that were in `ended` before the machine was looked at."""
        if ended is self.ended:
            self.ended = {}

    def unhealthy(self, resource: Resource) -> dict[str, str]:
        """Return why devices of a resource are unhealthy, by id."""
        return {
            id_: REASON
            for id_, device in resource.devices.items()
            for kept in (self._paused.get(device.gpu), self.ended.get(device.gpu))
            if kept is not None and device.instance not in kept
        }
