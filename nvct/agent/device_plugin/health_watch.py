# SPDX-License-Identifier: Apache-2.0
"""Watches the health of devices: XID errors, and NVML or a GPU that does not answer.

NVML that hangs is noticed before its worker is killed: a call may take seconds on a machine whose
driver is busy, so the kill waits for the call's limit, while the devices are unhealthy already.
"""

from __future__ import annotations

import asyncio

from nvct.agent.device_plugin import health
from nvct.agent.nvml_client import SupervisorEndedError
from nvct.errors import NvmlError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvct.agent.device_plugin.counts import Counts
    from nvct.agent.device_plugin.health import Checks
    from nvct.agent.device_plugin.resources import Resource
    from nvct.agent.logs import Log
    from nvct.agent.nvml_client import NvmlClient
    from nvct.host.nvml.model import NvmlEvents, XidEvent

EVENTS_S = 0.5
"""Between two questions, each of which also asks every GPU for a value."""
SUSPECT_S = 1.2
"""An answer takes a millisecond; without one, the devices are unhealthy."""
TICKS = 12
"""Parts of that wait: on a machine without CPU to spare, each of them takes longer."""


class HealthWatch:
    """The health of the devices, since the start or the last `forget`.

    XIDs are asked for also where none counts, because the question tells whether NVML answers.
    """

    def __init__(
        self, checks: Checks, counts: Counts, log: Log, changed: Callable[[], None]
    ) -> None:
        """Consider every device healthy.

        Args:
            checks: which XIDs count.
            counts: of the plugin.
            log: for what happens.
            changed: called when the health of a device may have changed.
        """
        self._problems: dict[str, str] = {}
        self._checks = checks
        self._counts = counts
        self._log = log
        self._changed = changed
        self._sick: dict[str, str] = {}
        self._hanging: dict[str, str] = {}
        self._watch = 0

    @property
    def nvml_problem(self) -> str:
        """Return why all devices are unhealthy, "" if they are not."""
        return next(iter(self._problems.values()), "")

    def unhealthy(self, resource: Resource) -> dict[str, str]:
        """Return the reason for each device of a resource that is not healthy, by id."""
        if self.nvml_problem:
            return dict.fromkeys(resource.devices, self.nvml_problem)
        hanging = {
            device.id: f"the GPU does not answer: {self._hanging[device.gpu]}"
            for device in resource.devices.values()
            if device.gpu in self._hanging
        }
        return {
            **{id_: reason for id_, reason in self._sick.items() if id_ in resource.devices},
            **hanging,
        }

    def forget(self) -> None:
        """Consider every device healthy that had an XID error."""
        self._sick.clear()

    async def run(
        self, nvml: Callable[[], NvmlClient | None], resources: Callable[[], Iterable[Resource]]
    ) -> None:
        """Watch until canceled.

        Args:
            nvml: returns the client, None while there is nothing to watch.
            resources: returns what is offered.

        Raises:
            SupervisorEndedError: NVML cannot be asked any more.
        """
        while True:
            await asyncio.sleep(EVENTS_S)
            client = nvml()
            if client is None:
                continue
            try:
                events = await self._ask(client)
            except SupervisorEndedError:
                raise
            except NvmlError as error:
                self.set_nvml_problem("watch", error.message)
                continue
            self.set_nvml_problem("watch", "")
            self._note(events, list(resources()))

    async def _ask(self, client: NvmlClient) -> NvmlEvents:
        """Return the events; the devices are unhealthy while the answer takes too long.

        A call that is in progress has a limit of its own, which may be longer.
        """
        limit_s = client.busy_s + SUSPECT_S
        question = asyncio.ensure_future(client.events())
        try:
            for _ in range(TICKS):
                if not question.done():
                    await asyncio.wait([question], timeout=limit_s / TICKS)
            if not question.done():
                self.set_nvml_problem("watch", f"NVML does not answer within {limit_s:g} s")
            return await question
        finally:
            question.cancel()

    def _note(self, events: NvmlEvents, resources: Iterable[Resource]) -> None:
        self._note_hanging(events.unanswered)
        if events.watch != self._watch:
            self._watch = events.watch
            for uuid, reason in events.unwatched.items():
                self._log.warning(f"XID errors of {uuid} are not reported: {reason}")
        for event in events.events:
            if not self._checks.counts(event.xid):
                self._log.info(f"XID {event.xid} of {event.uuid} is ignored")
                continue
            for resource in resources:
                self._note_xid(event, resource)
        if events.events:
            self._changed()

    def _note_hanging(self, hanging: dict[str, str]) -> None:
        """Note which GPUs do not answer: a reason for each, by UUID."""
        for uuid in sorted(hanging.keys() - self._hanging.keys()):
            self._log.warning(f"{uuid} does not answer: its devices are unhealthy")
        for uuid in sorted(self._hanging.keys() - hanging.keys()):
            self._log.warning(f"{uuid} answers again")
        if hanging != self._hanging:
            self._hanging = hanging
            self._changed()

    def _note_xid(self, event: XidEvent, resource: Resource) -> None:
        for id_ in health.affected(resource.devices.values(), event):
            self._log.warning(f"'{id_}' is unhealthy: XID {event.xid}")
            if id_ not in self._sick:
                self._sick[id_] = f"XID {event.xid}"
                self._counts.xids[resource.name] += 1

    def set_nvml_problem(self, source: str, problem: str) -> None:
        """Make all devices unhealthy while NVML does not answer one who asks it.

        Args:
            source: who asks.
            problem: a sentence, "" if NVML answers.
        """
        before = self.nvml_problem
        self._problems.pop(source, None)
        if problem:
            self._problems[source] = problem
        after = self.nvml_problem
        if after == before:
            return
        self._log.warning(f"all devices are unhealthy: {after}" if after else "NVML answers again")
        self._changed()
