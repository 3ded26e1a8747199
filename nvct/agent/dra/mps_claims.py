# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemons of claims: they run while a claim is prepared.

The agent's keeper runs them, beside those of the device plugin, and restarts a daemon that has
ended. After a restart of the agent, the keeper gets the daemons from the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from nvct.agent.core.logs import Log
from nvct.agent.core.waiting import tick
from nvct.agent.mps.daemons import Daemon
from nvct.agent.mps.keeper import ENDED, NOT_YET
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError, NvctError

LOOK_S = 2.0
"""How often the keeper is asked for daemons that have ended."""
POLL_S = 0.1
"""The same, while a claim waits for its daemon."""
LIMIT_S = 12.0
"""Seconds to wait for the start or the end of a daemon: together with the wait for the journal's
lock less than the kubelet's limit for a call."""


class ClaimDaemons:
    """The daemons of this node's claims; `problems` has why each is not ready, "" if it is."""

    def __init__(self, nvml: NvmlClient, log: Log) -> None:
        self.problems: dict[str, str] = {}
        self._nvml = nvml
        self._log = log
        self._wanted: dict[str, Daemon] = {}
        self._asked: dict[str, Daemon] = {}

    def want(self, daemons: Iterable[Daemon]) -> None:
        """Set which daemons are to run: these, and no others."""
        self._wanted = {daemon.resource: daemon for daemon in daemons}

    async def ensure(self, daemon: Daemon) -> None:
        """Have a daemon run, and wait until its limits are read back; NvctError if that fails."""
        name = daemon.resource
        self._wanted[name] = daemon
        end = time.monotonic() + LIMIT_S
        while problem := (await self._ask(self._wanted)).get(name, NOT_YET):
            is_final = problem not in (NOT_YET, ENDED)
            if is_final or time.monotonic() > end:
                what = "time slice" if daemon.time_slice else "MPS control daemon"
                raise HostError(
                    f"the {what} of the claim is not ready: {problem}",
                    hint="the kubelet asks again",
                )
            await asyncio.sleep(POLL_S)
        self.problems[name] = ""

    async def release(self, daemon: Daemon) -> None:
        """Stop a daemon, and wait until it has ended or another claim wants it.

        Raises:
            NvctError: it has not ended in time.
        """
        name = daemon.resource
        # A keeper stops only daemons that it knows, and one that has just started knows none.
        await self._ask({**self._wanted, name: daemon})
        self._wanted.pop(name, None)
        self.problems.pop(name, None)
        end = time.monotonic() + LIMIT_S
        while name in await self._ask(self._wanted) and name not in self._wanted:
            if time.monotonic() > end:
                raise HostError(
                    f"MPS control daemon {name} has not ended within {LIMIT_S:g} s",
                    hint="the kubelet asks again",
                )
            await asyncio.sleep(POLL_S)

    async def watch(self) -> None:
        """Tell the keeper which daemons are wanted, and log what has changed, until canceled."""
        while True:
            await self._look()
            await asyncio.sleep(tick(LOOK_S))

    async def _look(self) -> None:
        wanted = {**self._wanted}
        if not wanted and not self._asked:
            return
        try:
            state = await self._ask(wanted)
        except NvctError as error:
            state = dict.fromkeys(wanted, error.message)
        for name in self.problems.keys() - self._wanted.keys():
            del self.problems[name]
        for name in wanted.keys() & self._wanted.keys():
            problem = state.get(name, NOT_YET)
            if problem != self.problems.get(name, NOT_YET):
                self._log.info(f"{name}: {problem or 'its MPS control daemon is ready'}")
            self.problems[name] = problem

    async def _ask(self, wanted: dict[str, Daemon]) -> dict[str, str]:
        self._asked = {**wanted}
        return await self._nvml.mps(wanted.values(), starts=True, owner="dra")
