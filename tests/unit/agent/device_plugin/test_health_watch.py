# SPDX-License-Identifier: Apache-2.0
"""NVML that is busy with a long call does not hang."""

from __future__ import annotations

import asyncio
import io
from typing import cast

import pytest

from nvct.agent.device_plugin import health, health_watch
from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.health_watch import HealthWatch
from nvct.agent.logs import Log
from nvct.host.nvml.model import NvmlEvents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.nvml_client import NvmlClient


class Busy:
    """A client whose answer takes longer than SUSPECT_S."""

    def __init__(self, busy_s: float) -> None:
        self.busy_s = busy_s

    async def events(self) -> NvmlEvents:
        await asyncio.sleep(0.4)
        return NvmlEvents(watch=1, events=(), unwatched={})


@pytest.mark.parametrize(("busy_s", "problems"), [(0.0, True), (30.0, False)])
def test_the_limit_of_a_call_in_progress_counts(
    busy_s: float, *, problems: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch, "EVENTS_S", 0.01)
    monkeypatch.setattr(health_watch, "SUSPECT_S", 0.1)
    log = io.StringIO()
    watch = HealthWatch(health.checks({}), Counts(), Log(target=log), lambda: None)

    async def run() -> None:
        client = cast("NvmlClient", Busy(busy_s))
        watching = asyncio.create_task(watch.run(lambda: client, list))
        await asyncio.sleep(0.7)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(run())
    assert ("does not answer within" in log.getvalue()) is problems
