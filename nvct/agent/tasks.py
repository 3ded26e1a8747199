# SPDX-License-Identifier: Apache-2.0
"""Tasks of the agent: each runs alone, and one that fails is started again with a back-off."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Literal

from nvct import errors
from nvct.agent.nvml.client import SupervisorEndedError
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any, Protocol, TypeAlias

    from nvct.agent.logs import Log
    from nvct.agent.web.exposition import Family

    # Returns what /status shows.
    Document: TypeAlias = Callable[[], dict[str, Any]]
    State: TypeAlias = Literal["waiting", "running", "failed", "stopped"]

    class Runs(Protocol):
        """What does a task's work; setting `reload` has it read its settings again."""

        reload: asyncio.Event

        async def run(self) -> None:
            """Run until canceled."""

        def describe(self) -> list[dict[str, object]]:
            """Return what /status shows, as JSON data."""

        def metrics(self) -> Iterable[Family]:
            """Return the task's own metrics."""


DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
LASTS_S = 300.0
"""A task that ran that long starts with the shortest delay again."""


@dataclass
class Task:
    """One task and its state.

    Attributes:
        name: as in --tasks.
        run: runs until it is canceled.
        describe: returns what /status shows of the task, as JSON data.
        metrics: returns its own metrics.
        state: waiting before its start; failed until it is started again.
        reason: the sentence of its last failure, "" if there is none.
        restarts: how often it was started again.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    describe: Callable[[], object] = field(default=lambda: None)
    metrics: Callable[[], Iterable[Family]] = field(default=lambda: ())
    state: State = "waiting"
    reason: str = ""
    restarts: int = 0

    async def keep(self, journal: Log) -> None:
        """Run the task until this is canceled.

        Raises:
            SupervisorEndedError: the agent has to end.
        """
        failures = 0
        try:
            while True:
                began = time.monotonic()
                self.state = "running"
                try:
                    await self.run()
                    self.reason = "it has ended by itself"
                except SupervisorEndedError:
                    raise  # no task can do without it, and only a new process has another
                except Exception as error:  # whatever it is, the other tasks run on
                    known = error if isinstance(error, NvctError) else errors.unexpected(error)
                    self.reason = known.message
                failures = 0 if time.monotonic() - began > LASTS_S else failures
                delay_s = DELAYS_S[min(failures, len(DELAYS_S) - 1)]
                failures += 1
                self.state = "failed"
                journal.error(f"{self.name}: {self.reason}; it is started again in {delay_s:g} s")
                await asyncio.sleep(delay_s)
                self.restarts += 1
        finally:
            self.state = "stopped"
