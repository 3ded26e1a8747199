# SPDX-License-Identifier: Apache-2.0
"""The health of this node's GPUs, for all tasks that offer them: one engine for each process.

A task calls `run` beside its own work, and asks `problem` for each device that it offers. NVML is
asked for XIDs twice a second, and for other values less often. The question for XIDs also shows
whether NVML and each GPU answer: a GPU that does not answer is unhealthy at once, and healthy
again when it answers, unless that takes so long that a look notes the fault, too.

While NVML hangs, devices are unhealthy even before its worker is killed: a call can take seconds
on a machine whose driver is busy, so the kill waits for the call's limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from nvct import typed
from nvct.agent.core.logs import Log
from nvct.agent.core.waiting import tick
from nvct.agent.health import board, notices
from nvct.agent.health.board import WHOLE, Board, Change, Instance, Key
from nvct.agent.health.machine import Health
from nvct.agent.health.notices import Notices
from nvct.agent.health.settings import Settings
from nvct.agent.health.store import Store
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.web.exposition import Family, family
from nvct.errors import NvmlError
from nvct.host import faults
from nvct.host.faults import SEVERE
from nvct.host.nvml.model import NvmlEvents, XidEvent
from nvct.oci.jsontext import Json

FindNvml: TypeAlias = Callable[[], NvmlClient | None]
T = TypeVar("T")
Changed: TypeAlias = Callable[[Iterable["Change"]], None]

EVENTS_S = 0.5  # Between two questions, each of which also asks every GPU for a value
SUSPECT_S = 2.0  # After this wait for an answer, the devices are unhealthy; it takes 1 ms
TICKS = 20  # Parts of that wait: on a machine without CPU to spare, each of them takes longer
LOOK_S = 5.0  # Between two looks at NVML's values while all devices are healthy
LOOK_SOON_S = 1.0  # The same while one is not, or after an XID
PREFIX = "nvct_health"
TASK = "health"


@dataclass(frozen=True, slots=True, eq=False)
class User:
    """A task that offers devices."""

    nvml: FindNvml  # returns the client, None while the task has nothing to watch
    # called with changes of devices; with () if NVML or a GPU answers again or does not answer
    changed: Changed


class HealthEngine:
    """The health of the GPUs and MIG instances of this node.

    It begins with the states that an earlier process of this boot has saved. It asks for XIDs even
    if none counts, because the question shows whether NVML answers.
    """

    def __init__(self, settings: Settings, log: Log, store: Store | None = None) -> None:
        self._settings = settings
        self._log = log
        self._store = store
        self._board = Board(settings.rules)
        self._preflight = settings.preflight_after(None)
        self._values: dict[str, dict[str, float]] = {}
        self._saved: set[str] = set()
        self._problems: dict[str, str] = {}
        self._hanging: dict[str, str] = {}
        self._withheld: dict[str, str] = {}
        self._were_reset: set[str] = set()
        self._notices = Notices()
        self._failures: Counter[Key] = Counter()  # since the start of the program
        self._returns: Counter[Key] = Counter()
        self._users: list[User] = []
        self._turn = asyncio.Lock()
        self._watch = 0
        self._look_at = 0.0
        self._load()

    def use(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self._settings = settings
        self._board.rules = settings.rules
        self._preflight = settings.preflight_after(self._preflight)

    @property
    def nvml_problem(self) -> str:
        """Return why NVML does not answer, so that all devices are unhealthy; "" if it does."""
        return next(iter(self._problems.values()), "")

    def problem(self, gpu: str, instance: Instance | None = None) -> str:
        """Return why pods cannot have a GPU, or an instance by its two ids; "" if they can."""
        if self.nvml_problem:
            return self.nvml_problem
        health = self._board.of(gpu, instance)
        if not health.is_offered:
            return notices.sentence(health)
        if gpu in self._hanging:
            return faults.hanging(self._hanging[gpu])
        withheld = self._withheld.get(gpu, "")
        return withheld or (self._preflight.problem(gpu) if self._preflight else "")

    def application_xid(self, gpu: str, instance: Instance | None = None) -> int:
        """Return the last XID of an application on a device since the agent's start, 0 if none."""
        return self._board.application_xid(gpu, instance)

    def is_passing(self, gpu: str, instance: Instance | None = None) -> bool:
        """Return whether a device is unhealthy now, but will become healthy by itself."""
        is_asked = not self.nvml_problem and gpu not in self._hanging
        return is_asked and self._board.of(gpu, instance).state == "probation"

    def of_gpus(self) -> dict[str, Health]:
        """Return the health of each GPU that was seen, by UUID."""
        return {key.gpu: health for key, health in self._board.states.items() if key.gi == WHOLE}

    def withhold(self, reasons: Mapping[str, str]) -> None:
        """Keep these GPUs from pods until the next call; `reasons` by UUID."""
        if reasons != self._withheld:
            self._withheld = dict(reasons)
            self._tell(())

    def note_reset(self, gpus: Iterable[str]) -> None:
        """Note that GPUs were reset: a GPU before Volta has no counter that shows it."""
        self._were_reset.update(gpus)
        self._look_at = 0.0

    def note(
        self, gpu: str, reason: str, message: str, *, is_warning: bool, of_pods: bool
    ) -> None:
        """Log a notice about a GPU and add it; it becomes an Event of the Node or of its pods."""
        (self._log.warning if is_warning else self._log.info)(message)
        devices = self._board.devices(Key(gpu)) if of_pods else ()
        self._notices.add(reason, message, time.time(), devices, is_warning=is_warning)
        self._save()

    def describe(self) -> dict[str, Json]:
        """Return what /status shows: devices that are not healthy, and the last notices."""
        return {
            "devices": self._board.describe(time.monotonic()),
            "notices": [notice.describe() for notice in self._notices.all],
            "problem": self._store.problem if self._store else "",
            **({"preflight": self._preflight.describe()} if self._preflight else {}),
        }

    def metrics(self) -> Iterator[Family]:
        """Yield the states of GPUs and of instances that had an error, and counters."""
        help_text = (
            "State of a GPU, or of a MIG instance that had an error: 1 for the one it is in."
        )
        yield family(f"{PREFIX}_state", help_text, self._board.rows())
        for name, help_text, counted in (
            ("failures", "How often a device became unhealthy.", self._failures),
            ("returns", "How often a device became healthy again.", self._returns),
        ):
            counts = [(counted[key], key.labels) for key in self._board.states]
            yield family(f"{PREFIX}_{name}_total", help_text, counts)
        if self._preflight:
            yield from self._preflight.metrics()

    def forget(self) -> None:
        """Consider every device healthy; an error that is still there is found again."""
        if self._preflight:
            self._preflight.forget()
        self._look_at = 0.0
        self._note(self._board.forget(time.monotonic()))

    def broken_instances(self) -> set[tuple[str, int]]:
        """Return the GPU instances to be destroyed and made again: GPU's UUID, id."""
        return self._board.broken_instances() if self._settings.recovers else set()

    def note_renewed(self, gpu: str, gi: int) -> None:
        """Note that a GPU instance was destroyed and made again."""
        self._note(self._board.forget_instance(gpu, gi, time.monotonic()))

    def set_nvml_problem(self, source: str, problem: str) -> None:
        """Make all devices unhealthy because NVML does not answer `source`; "" ends that."""
        before = self.nvml_problem
        self._problems.pop(source, None)
        if problem:
            self._problems[source] = problem
        after = self.nvml_problem
        if after == before:
            return
        self._log.warning(f"all devices are unhealthy: {after}" if after else "NVML answers again")
        self._tell(())

    async def run(self, nvml: FindNvml, changed: Changed) -> None:
        """Watch until canceled. Several tasks can call this; one call at a time watches for all.

        SupervisorEndedError if NVML can no longer be asked.
        """
        user = User(nvml, changed)
        self._users.append(user)
        try:
            async with self._turn:
                await self._run()
        finally:
            self._users.remove(user)

    async def begin(self, client: NvmlClient) -> None:
        """Start the watch for XIDs unless it runs, and check GPUs, before devices are offered."""
        try:
            if not self._watch:
                await self._take(client, await self._ask(client, client.events()))
            if self._preflight:
                self._preflight.note(await self._ask(client, client.preflight()))
        except NvmlError as error:
            self.set_nvml_problem("watch", error.message)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(tick(EVENTS_S))
            client = next((client for user in self._users if (client := user.nvml())), None)
            if client is None:
                continue
            try:
                await self._take(client, await self._ask(client, client.events()))
                if time.monotonic() >= self._look_at:
                    await self._look(client)
            except NvmlError as error:
                self.set_nvml_problem("watch", error.message)
            else:
                self.set_nvml_problem("watch", "")

    async def _ask(self, client: NvmlClient, answer: Awaitable[T]) -> T:
        """Return an answer; the devices are unhealthy while it takes too long.

        A call that is in progress has a limit of its own, which can be longer.
        """
        limit_s = client.busy_s + SUSPECT_S
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def wait(ticks: int) -> None:
            nonlocal timer
            if ticks:
                timer = loop.call_later(limit_s / TICKS, wait, ticks - 1)
            else:
                self.set_nvml_problem("watch", f"NVML does not answer within {limit_s:g} s")

        timer = loop.call_later(limit_s / TICKS, wait, TICKS - 1)
        try:
            return await answer
        finally:
            timer.cancel()

    async def _look(self, client: NvmlClient) -> None:
        """Ask for NVML's values, and note the health that they show."""
        conditions = await self._ask(client, client.conditions())
        counts = self._settings.table.checks.looks
        found = {uuid: board.hangs(reason) for uuid, reason in self._hanging.items() if counts}
        values = {}
        for gpu in conditions.gpus:
            if gpu.uuid not in found:
                before, was_reset = self._values.get(gpu.uuid, {}), gpu.uuid in self._were_reset
                found[gpu.uuid] = board.look(gpu, before, counts=counts, was_reset=was_reset)
                values[gpu.uuid] = {**before, **gpu.values}
        if self._preflight:  # if that fails, the next look finds the same resets
            found = await self._preflight.look(
                found, lambda: self._ask(client, client.preflight())
            )
        self._values |= values
        self._were_reset -= values.keys()
        self._note(self._board.note_looks(found, time.monotonic()))
        is_calm = all(health.state == "healthy" for health in self._board.states.values())
        self._look_at = time.monotonic() + (LOOK_S if is_calm else LOOK_SOON_S)
        is_checked = self._preflight is not None and self._preflight.is_unsaved
        if is_checked or (not is_calm and self._values.keys() != self._saved):
            self._save()  # the values that a reset is recognized by

    async def _take(self, client: NvmlClient, events: NvmlEvents) -> None:
        """Note events; before that, look at the GPUs if an event is of an unknown instance.

        Without the look, the error of a new instance would count as one of the whole GPU.
        """
        try:
            if not all(self._board.knows(event) for event in events.events):
                await self._look(client)
        finally:
            self._note_events(events)

    def _note_events(self, events: NvmlEvents) -> None:
        if events.watch != self._watch:
            self._watch, self._look_at = events.watch, 0.0
            if self._preflight:
                self._preflight.is_due = True  # the driver may be another one
            self._log.info("XID errors are watched from now on")
            for uuid, reason in events.unwatched.items():
                self._log.warning(f"XID errors of {uuid} are not reported: {reason}")
        self._note_hanging(events.unanswered)
        for event in events.events:
            self._note_xid(event)

    def _note_xid(self, event: XidEvent) -> None:
        self._look_at = 0.0  # the driver may ask for a recovery
        fault = self._settings.table.fault(event.xid)
        if fault.action in SEVERE:
            self._note(self._board.note_xid(event, fault, time.monotonic()))
            return
        self._log.info(f"XID {event.xid} of {event.uuid} is ignored ({fault.action})")
        if fault.action == "application":
            reason, message = notices.of_application(event, fault.reason)
            devices = self._board.devices_of(event)
            self._board.note_application_xid(event)
            if self._notices.add(reason, message, time.time(), devices, is_warning=True):
                self._save()

    def _note_hanging(self, hanging: dict[str, str]) -> None:
        """Note which GPUs do not answer: a reason for each, by UUID."""
        messages = [
            *(
                (uuid, "does not answer: its devices are unhealthy")
                for uuid in sorted(hanging.keys() - self._hanging.keys())
            ),
            *((uuid, "answers again") for uuid in sorted(self._hanging.keys() - hanging.keys())),
        ]
        for uuid, text in messages:
            self._log.warning(f"{uuid} {text}")
            self._log.decided(TASK, "changed", uuid, result=text)
        if hanging != self._hanging:
            self._hanging = hanging
            self._look_at = 0.0
            self._tell(())

    def _note(self, changes: list[Change]) -> None:
        for change in changes:
            reason, message, is_warning = notices.of_change(change)
            (self._log.warning if is_warning else self._log.info)(message)
            about = notices.name_of(change.key)
            self._log.decided(TASK, "changed", about, result=message.removeprefix(f"{about} "))
            self._notices.add(reason, message, time.time(), change.devices, is_warning=is_warning)
            is_failure = change.after.state == "unhealthy" != change.before.state
            self._failures[change.key] += is_failure
            self._returns[change.key] += change.before.state == "probation" and (
                change.after.state == "healthy"
            )
        if changes:
            self._save()
            self._tell(changes)

    def _tell(self, changes: Iterable[Change]) -> None:
        for user in list(self._users):
            user.changed(changes)

    def _load(self) -> None:
        document = self._store.read() if self._store and self._settings.recovers else None
        if not isinstance(document, dict):
            return
        try:
            self._board.load(document)
        except typed.MalformedError as error:
            self._log.warning(f"the former health of the GPUs is unknown: {error}")
            return
        with contextlib.suppress(typed.MalformedError):
            kind = dict[str, dict[str, float]]
            self._values = typed.load(kind, document.get("values"))
        if self._preflight:
            with contextlib.suppress(typed.MalformedError):
                self._preflight.load(document.get("preflight"))
        self._notices.load(document.get("notices"))
        for key, health in self._board.states.items():
            if health.state != "healthy":
                self._log.warning(f"{notices.name_of(key)} is still {health.state}: "
                                  f"{health.reason}")  # fmt: skip

    def _save(self) -> None:
        if self._store is None or not self._settings.recovers:
            return
        before, self._saved = self._store.problem, set(self._values)
        values: dict[str, Json] = {uuid: {**known} for uuid, known in self._values.items()}
        recent: Json = [notice.describe() for notice in self._notices.all]
        more = {"preflight": self._preflight.dump()} if self._preflight else {}
        self._store.write({**self._board.to_dict(), "values": values, "notices": recent, **more})
        if self._store.problem and self._store.problem != before:
            self._log.warning(
                f"a restart will forget which devices are unhealthy: {self._store.problem}"
            )
