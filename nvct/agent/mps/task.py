# SPDX-License-Identifier: Apache-2.0
"""The task of `mps-control-daemon`: keeps daemons for the resources of this machine.

As with NVIDIA's program, files show the state: `.started` in the folder of each resource whose
daemon is ready, and `.ready` in the folder of MPS when all daemons are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.core.task import PERIOD_S, Task
from nvct.agent.core.waiting import together
from nvct.agent.device_plugin.mps_watch import MpsWatch
from nvct.agent.device_plugin.resources import resources
from nvct.agent.device_plugin.settings import Settings
from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.driver_root import ROOT_ENV, with_driver_roots
from nvct.agent.mps import place, settings
from nvct.errors import HostError, NvctError, OSErrorsAs

RETRY_S = 5.0
STARTED, READY = ".started", ".ready"


def make(context: Context) -> MpsDaemons:
    """Return the task of the program."""
    env = with_driver_roots(context.env)
    machine = replace(context, env={}).discovery(env.get(ROOT_ENV, "/driver-root"))
    folder = place.of_environment(context.env).folder
    return MpsDaemons(lambda: context.load(settings.resolve), machine, folder, context.journal)


class MpsDaemons(Task):
    """Keeps the daemons until it is canceled."""

    def __init__(
        self, load: Callable[[], Settings], discovery: Discovery, folder: str, log: Log
    ) -> None:
        super().__init__(log, problems_are_errors=True)
        self._load = load
        self._settings = load()
        self._discovery = discovery
        self._folder = folder
        self._nothing = ""
        self._names: tuple[str, ...] = ()
        self._watch = MpsWatch(log, self._tell, starts=True)

    def describe(self) -> list[dict[str, object]]:
        """Return the state of each daemon, as JSON data."""
        return [
            {"resource": name, "state": "waiting" if text else "ready", "reason": text}
            for name, text in self._watch.problems.items()
        ]

    async def run(self) -> None:
        """Keep the daemons until canceled."""
        watch = self._watch.run(lambda: self._discovery.nvml)
        try:
            await together(watch, self._follow())
        finally:
            self._remove_files(())

    async def _follow(self) -> None:
        while True:
            await self._follow_machine(self._discovery.signature, self._want)
            self._settings = self._loaded_again(self._load, self._settings)

    async def _want(self, _is_change: bool) -> float:  # noqa: FBT001
        """Set the daemons that this machine needs; return the seconds until the next look."""
        try:
            inventory = await self._discovery.inventory()
            found, _ = resources(inventory, self._settings)
            wanted = found.values() if self._settings.sharing.uses_mps else ()
            await self._watch.want(wanted, self._discovery.nvml)
        except NvctError as error:
            self.problem.tell(error)
            return RETRY_S
        nothing = "" if self._watch.problems else "no device is shared by MPS; waiting for one"
        if nothing != (self.problem.text or self._nothing):
            self._log.info(nothing or "there are devices shared by MPS")
        self._nothing = nothing
        self.problem.clear()
        self._tell()
        return PERIOD_S

    def _tell(self) -> None:
        """Make the files of daemons that are ready, and remove the others."""
        problems = self._watch.problems
        ready = [name for name, text in problems.items() if not text]
        self._remove_files(ready if len(ready) < len(problems) else (*ready, ""))
        self._names = tuple(ready)
        with OSErrorsAs(HostError, f"cannot write to {self._folder}"):
            for name in ready:
                _touch(f"{self._folder}/{name}/{STARTED}")
            if len(ready) == len(problems):
                os.makedirs(self._folder, exist_ok=True)
                _touch(f"{self._folder}/{READY}")

    def _remove_files(self, names: Iterable[str]) -> None:
        """Remove all files except those of these resources; "" stands for `.ready`."""
        kept = set(names)
        paths = [f"{name}/{STARTED}" for name in self._names if name not in kept]
        for path in paths if "" in kept else [*paths, READY]:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{path}")


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644))
