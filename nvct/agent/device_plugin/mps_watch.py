# SPDX-License-Identifier: Apache-2.0
"""Resources shared by MPS: which wait for their control daemon, and which have lost it.

A resource is offered when its daemon's limits have been read back. If the daemon ends after that,
its devices are unhealthy until it runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from nvct.agent.core import waiting
from nvct.agent.core.logs import Log
from nvct.agent.device_plugin.resources import Resource
from nvct.agent.mps import daemons
from nvct.agent.mps.daemons import Daemon
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import NvctError

LOOK_S = 0.5  # Between two questions to the keeper, which answers at once
STOP_S = 8.0  # How long the daemons can take to end
STARTING = "its MPS control daemon is not ready yet"


class MpsWatch:
    """The daemons that are wanted, and their state.

    `starts`: whether this program has them started; else another program does.
    """

    def __init__(self, log: Log, changed: Callable[[], None], *, starts: bool) -> None:
        # resources with an MPS control daemon that has been ready at least once
        self.has_run: frozenset[str] = frozenset()
        self._log = log
        self._changed = changed
        self._starts = starts
        self._wanted: dict[str, Daemon] = {}
        self._wants = asyncio.Event()
        # why each daemon is not ready, "" if it is, by resource
        self.problems: dict[str, str] = {}

    async def want(self, resources: Iterable[Resource], nvml: NvmlClient) -> None:
        """Set which daemons are wanted: those of these resources, and no others.

        HostError if a device cannot be shared by MPS; NvmlError if NVML does not answer.
        """
        shared = list(resources)
        attributes = await nvml.attributes() if shared else {}
        wanted = daemons.wanted(shared, attributes)
        changed = {name for name in wanted if wanted[name] != self._wanted.get(name)}
        self.has_run = frozenset((self.has_run & wanted.keys()) - changed)
        self._wanted = wanted
        if wanted:
            self._wants.set()
        self.problems = {name: self.problems.get(name, STARTING) for name in wanted}
        for name in changed:
            self.problems[name] = STARTING

    def waiting(self) -> dict[str, str]:
        """Return why resources are not offered yet, by name."""
        return {name: text for name, text in self.problems.items() if name not in self.has_run}

    def unhealthy(self, resource: Resource) -> dict[str, str]:
        """Return the reason for each replica whose daemon does not run, by id."""
        problem = self.problems.get(resource.name, "")
        if not problem:
            return {}
        return {id_: problem for id_, device in resource.devices.items() if device.is_replica}

    async def run(self, nvml: Callable[[], NvmlClient]) -> None:
        """Watch until canceled, and stop the daemons then; `nvml` returns the client."""
        is_kept = False
        try:
            while True:
                await self._wants.wait()
                is_kept = bool(self._wanted)
                if not is_kept:
                    self._wants.clear()
                await self._look(nvml())
                await asyncio.sleep(waiting.tick(LOOK_S))
        finally:
            if is_kept and self._starts:
                await asyncio.shield(asyncio.wait_for(_stop(nvml()), STOP_S))

    async def _look(self, nvml: NvmlClient) -> None:
        wanted = self._wanted
        try:
            nvml.check()
            state = await nvml.mps(wanted.values(), starts=self._starts)
        except NvctError as error:
            state = dict.fromkeys(wanted, error.message)
        if wanted is not self._wanted:
            return
        problems = {name: state.get(name, STARTING) for name in wanted}
        if problems == self.problems:
            return
        for name, problem in problems.items():
            if problem != self.problems.get(name):
                self._log.info(f"{name}: {problem or 'its MPS control daemon is ready'}")
        self.problems = problems
        ready = frozenset(name for name, problem in problems.items() if not problem)
        self.has_run |= ready
        self._changed()


async def _stop(nvml: NvmlClient) -> None:
    while await nvml.mps((), starts=True):  # noqa: ASYNC110 - another process tells
        await asyncio.sleep(LOOK_S)
