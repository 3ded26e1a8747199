# SPDX-License-Identifier: Apache-2.0
"""Tasks of the agent: each runs alone, and one that fails is started again with a back-off."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from nvct import errors
from nvct.agent.core.logs import Log, Problem
from nvct.agent.core.waiting import Backoff, tick, until_set
from nvct.agent.nvml.client import SupervisorEndedError
from nvct.agent.web.exposition import Family
from nvct.errors import NvctError

T = TypeVar("T")
State: TypeAlias = Literal["waiting", "running", "failed", "stopped"]
LASTS_S = 300.0  # A task that ran that long starts with the shortest delay again
MACHINE_S = 1.0  # Between two looks at the machine, which read a few folders of procfs
SETTLE_S = 2.0  # Until the next look after a change: procfs may show it before NVML does
PERIOD_S = 30.0  # Until the next look if nothing seems to have changed


class Task(ABC):
    """Does the work of one task.

    Attributes:
        reload: set it to make the task read its settings again.
        is_settled: whether the task has done what other tasks wait for before they start.
    """

    is_settled = True

    def __init__(self, log: Log, *, problems_are_errors: bool = False) -> None:
        self.reload = asyncio.Event()
        self._log = log
        self.problem = Problem(log.error if problems_are_errors else log.warning)

    @abstractmethod
    async def run(self) -> None:
        """Run until canceled."""

    @abstractmethod
    def describe(self) -> list[dict[str, object]]:
        """Return what /status shows, as JSON data."""

    def metrics(self) -> Iterable[Family]:
        """Return the task's own metrics."""
        return ()

    async def _follow_machine(
        self,
        look: Callable[[], Awaitable[object]],
        work: Callable[[bool], Awaitable[float]],
        is_due: Callable[[], bool] = lambda: False,
    ) -> None:
        """Work after each change of the machine, and when work is due, until `reload` is set.

        Args:
            look: returns a value that differs after a change.
            work: takes whether there is a change, and returns the seconds until it is due again.
            is_due: returns whether work is due before these seconds have passed.
        """
        seen: object = None
        due = 0.0
        while not self.reload.is_set():
            current = await look()
            is_change, seen = current != seen, current
            if is_change or time.monotonic() > due or is_due():
                delay_s = await work(is_change)
                due = time.monotonic() + delay_s
            await until_set(self.reload, tick(MACHINE_S))

    def _loaded_again(self, load: Callable[[], T], before: T) -> T:
        """Read the settings again and return them; return the former ones if they are wrong."""
        self.reload.clear()
        self._log.info("Received SIGHUP, reading the settings again")
        try:
            return load()
        except NvctError as error:
            self._log.error(f"the settings stay as they were: {error.message}")
            return before


@dataclass()
class KeptTask:
    """A task that the agent starts again after a failure, and the task's state."""

    name: str
    run: Callable[[], Awaitable[None]]
    # returns the task while it runs, else None
    work: Callable[[], Task | None] = lambda: None
    state: State = "waiting"  # waiting before its start; failed until it is started again
    reason: str = ""  # the sentence of its last failure, "" if there is none
    restarts: int = 0

    async def keep(self, journal: Log) -> None:
        """Run the task until this is canceled; SupervisorEndedError if the agent has to end."""
        backoff = Backoff()
        try:
            while True:
                began = time.monotonic()
                self.state = "running"
                try:
                    await self.run()
                    self.reason = "it has ended by itself"
                except SupervisorEndedError:
                    raise  # every task needs the supervisor, and only a new process starts one
                except Exception as error:  # whatever it is, the other tasks run on
                    known = error if isinstance(error, NvctError) else errors.unexpected(error)
                    self.reason = known.message
                if time.monotonic() - began > LASTS_S:
                    backoff.reset()
                delay_s = backoff.next_s()
                self.state = "failed"
                journal.error(f"{self.name}: {self.reason}; it is started again in {delay_s:g} s")
                await asyncio.sleep(delay_s)
                self.restarts += 1
        finally:
            self.state = "stopped"
