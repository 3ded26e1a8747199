# SPDX-License-Identifier: Apache-2.0
"""The task `mig-manager`: gives this node's GPUs the MIG configuration that its label names.

Level-triggered: at each change of the label and every 30 seconds, the wanted configuration is
compared with the GPUs. A change ends as success, or as failed with a reason. Pods and services
that it has paused come back in any case; if this process is killed, when it runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from nvct.agent.condition.condition import Condition
from nvct.agent.condition.task import event
from nvct.agent.core import logs, waiting
from nvct.agent.core.context import Context
from nvct.agent.core.instance import FOLDER
from nvct.agent.core.logs import Log
from nvct.agent.core.program import UPGRADES_ENV
from nvct.agent.core.task import Task
from nvct.agent.core.waiting import Backoff
from nvct.agent.health.engine import HealthEngine
from nvct.agent.kubernetes import node_watch
from nvct.agent.kubernetes.cluster import CONFLICT, EVENT, NODE, Cluster, ClusterError, Object
from nvct.agent.kubernetes.node_pods import PodDevice, Pods, sentence
from nvct.agent.machine.driver_root import ROOT_ENV, machine_roots
from nvct.agent.mig_manager import node_labels, settings
from nvct.agent.mig_manager.node_labels import State
from nvct.agent.mig_manager.settings import Settings
from nvct.agent.mig_manager.users import HostServices, Renewals
from nvct.agent.mig_manager.work import AgentSession, Change, Work, of_agent
from nvct.errors import HostError, NvctError, UsageError

T = TypeVar("T")

TASK = "mig-manager"
PERIOD_S = 30.0  # Between two comparisons without a report of a change
DEADLINE_S = 300.0  # Of a change; NVIDIA's manager waits as long for each of its steps
CLEAR_S = 120.0  # How long pods and services can take to release the GPUs
LOOK_S = 1.0  # Between two checks whether they have
RETRY_S = (60.0, 120.0, 300.0, 600.0)
"""Seconds before the next attempt, by the number of changes that failed on the GPUs."""
REBOOT_S = 300.0  # How long a reboot can take to begin
LEAVE_S = 5.0  # How long the API server can take when this task ends
NOT_IN_FORCE = "the MIG mode is not in force after a reboot"
"""The reason that keeps a node from being rebooted again for the same configuration."""
APPLIED, FAILED = "MigConfigApplied", "MigConfigFailed"


def make(context: Context) -> MigManager:
    """Return the task; the agent's ignores CONFIG_FILE, which is the device plugin's.

    UsageError if a setting is wrong, or has no effect with NVML in another container.
    """
    client = context.client
    if context.in_agent:
        own = {name: text for name, text in context.env.items() if name != "CONFIG_FILE"}
        context = replace(context, env=own)
    known = context.load(settings.resolve)
    if not client.chooses_library and (known.reboots or known.stops_clients):
        raise UsageError(
            "with NVML in another container, this program cannot reboot the host or stop services",
            hint="run nvidia-mig-manager in a container of its own, or the agent without --worker",
        )
    session = AgentSession(client, machine_roots({ROOT_ENV: known.driver_root}))
    connected = context.connect(known.kubeconfig)
    return MigManager(
        known,
        cluster=connected,
        work=of_agent(session, known, context.status),
        session=session,
        services=HostServices(known.host_root, known.clients_file, FOLDER),
        pods=Pods(client, connected),
        log=context.journal,
        health=lambda: context.shared.health,
        spares_own=context.in_agent and context.env.get(UPGRADES_ENV) == "true",
    )


class MigManager(Task):
    """The task of the agent that changes MIG; the event `reload` makes it compare at once."""

    def __init__(
        self,
        settings: Settings,
        *,
        cluster: Cluster,
        work: Work,
        session: AgentSession,
        services: HostServices,
        pods: Pods,
        log: Log,
        health: Callable[[], HealthEngine | None] = lambda: None,
        spares_own: bool = False,
    ) -> None:
        super().__init__(log)
        self._spares_own = spares_own
        self._settings = settings
        self._cluster = cluster
        self._work = work
        self._session = session
        self._services = services
        self._pods = pods
        self._renewals = Renewals(health, work, pods, log)
        self._node: Object | None = None
        self._seen: str | None = None
        self._name = ""
        self._shown: tuple[State | None, str] = None, ""
        self._pauses = False
        self._reboots = False
        self._failures = 0
        self._retry_at = 0.0

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the configuration, as JSON data."""
        state, reason = self._shown
        return [
            {
                "label": node_labels.CONFIG,
                "config": self._name,
                "config_state": state or "",
                "reason": reason or self.problem.text,
            }
        ]

    async def run(self) -> None:
        """Follow the label until canceled; a change in progress is ended first."""
        watch = node_watch.follow(self._cluster, self._settings.node, self._see, self.problem.tell)
        try:
            await waiting.together(watch, self._follow())
        finally:
            await self._leave()
            await self._pods.close()
            await self._cluster.close()

    async def _follow(self) -> None:
        backoff = Backoff(30.0, spread=(1, 1.5))
        while True:
            self.reload.clear()
            delay_s = PERIOD_S
            if self._session.refusal:
                delay_s = LOOK_S
            elif self._node is not None:
                try:
                    await self._converge(self._node)
                    backoff.reset()
                    self.problem.clear()
                except ClusterError as error:
                    self.problem.tell(error)
                    delay_s = backoff.next_s()
            if not self._session.refusal:
                await self._renew()
            await waiting.until_set(self.reload, delay_s)

    async def _renew(self) -> None:
        self._session.begin(DEADLINE_S)
        with self._told():
            await self._renewals.run(self._run)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Report an error that makes nothing else fail."""
        try:
            yield
        except NvctError as error:
            self.problem.tell(error)

    def _see(self, node: Object | None) -> None:
        if node is None:
            return  # it was deleted, and its GPUs stay as they are
        self._node = node
        if node_labels.wanted(node) != self._seen:
            self._seen = node_labels.wanted(node)
            self._retry_at = 0.0
            self.reload.set()

    async def _converge(self, node: Object) -> None:
        """Give the GPUs the configuration that the label names, and show the result in labels.

        ClusterError if the API server refuses, or does not answer; SupervisorEndedError if NVML
        can no longer be asked.
        """
        self._name = node_labels.wanted(node) or self._settings.default
        if not self._name:
            self._shown = None, ""
        elif time.monotonic() >= self._retry_at:
            self._session.begin()
            try:
                await self._reach(node)
                self._shown, self._failures = ("success", ""), 0
            except ClusterError:
                raise
            except NvctError as error:
                self._fail(error)
            finally:
                self._pauses = False
        await self._show()

    def _fail(self, error: NvctError) -> None:
        reason = f"{self._name}: {logs.sentence(error)}"
        if self._shown[1] != reason:
            self._log.error(reason)
            self._log.refused(TASK, self._name, error)
        self._shown = ("rebooting" if self._reboots else "failed"), reason
        self._reboots = False

    async def _reach(self, node: Object) -> None:
        """Give the GPUs the configuration if they do not have it.

        ClusterError if the API server refuses the state, before anything is changed; NvctError if
        the GPUs did not get the configuration.
        """
        name = self._name
        await self._start_services()  # of an agent that was killed
        change, users = await self._look(name)
        with self._told():
            await self._run(self._work.persist, name)
        if change is None:
            return
        was_tried = node_labels.reason(node) == f"{name}: {NOT_IN_FORCE}"
        if change.changes_mode and (was_tried or node_labels.state(node) == "rebooting"):
            raise HostError(NOT_IN_FORCE)
        self._refuse(node, change, users)
        self._log.info(f"MIG configuration {name}: {len(change.stays)} GPUs change")
        self._session.begin(DEADLINE_S)
        self._shown, self._pauses = ("pending", ""), True
        await self._show()
        try:
            await self._clear(users)
            await self._run(self._work.apply, name)
            self._log.info(f"MIG configuration {name} is applied")
            self._log.decided(
                TASK, "changed", name, result=f"GPUs that changed: {len(change.stays)}"
            )
        except NvctError as error:
            self._failures += 1
            self._retry_at = time.monotonic() + RETRY_S[min(self._failures, len(RETRY_S)) - 1]
            if self._settings.reboots and change.changes_mode:
                await self._reboot(error)
            raise
        finally:
            await self._start_services()

    async def _start_services(self) -> None:
        """Start the stopped services; a failure is logged and retried, and fails no change."""
        with self._told():
            await self._run(self._services.start)

    async def _look(self, name: str) -> tuple[Change | None, Sequence[PodDevice]]:
        """Return the change to make, None if there is none, and the pods' devices in its way."""
        if await self._run(self._work.look, name) is None:
            return None, ()
        devices = await self._pods.devices()
        self._work.in_use = [(each.gpu, *each.instance) for each in devices if each.instance]
        change = await self._run(self._work.look, name)
        if change is None:
            return None, ()
        return change, [each for each in devices if change.concerns(each.gpu, each.instance)]

    def _refuse(self, node: Object, change: Change, users: Sequence[PodDevice]) -> None:
        """Raise HostError, before anything is paused, if a change concerns devices in use."""
        known = self._settings
        if users and not known.evicts_pods:
            raise HostError(
                sentence(users),
                hint="delete these pods, or set migManager.evictPods=true in the chart "
                "(NVCT_MIG_EVICT_PODS without it); nothing was changed",
            )
        goes = users or node_labels.can_pause(node) or known.stops_clients
        if change.holders and not goes:
            raise HostError(
                sentence(change.holders), hint="end these processes; nothing was changed"
            )

    async def _clear(self, users: Sequence[PodDevice]) -> None:
        if self._settings.stops_clients:
            await self._run(self._services.stop)
        end = time.monotonic() + CLEAR_S
        try:
            if users:
                self._log.info(f"evicting pods: {sentence(users)}")
                await self._pods.evict(users)
            while left := await self._left():
                if time.monotonic() > end:
                    raise HostError(sentence(left), hint="end these pods or processes")
                await asyncio.sleep(LOOK_S)
        except ClusterError as error:  # here it ends the change
            raise HostError(error.message, hint=error.hint) from error

    async def _left(self) -> Sequence[object]:
        change, users = await self._look(self._name)
        return [*users, *(change.holders if change else ())]

    async def _reboot(self, error: NvctError) -> None:
        """Set the MIG modes, which stay pending, and reboot the node."""
        self._log.warning(f"{error.message}: rebooting the node")
        await self._run(self._work.set_modes, self._name)
        self._shown = "rebooting", error.message
        await self._show()
        await self._run(self._services.reboot)
        self._reboots = True
        self._retry_at = time.monotonic() + REBOOT_S

    async def _show(self) -> None:
        """Update the state, the reason and the operator's labels of the Node."""
        while self._node is not None:
            node = self._node
            state, reason = self._shown
            if (node_labels.wanted(node) or self._settings.default) != self._name:
                state = None  # the label has changed meanwhile: this is not its state
            metadata = node_labels.patch(
                node, state, reason, pauses=self._pauses, spares_own=self._spares_own
            )
            if not metadata:
                return
            version = node["metadata"]["resourceVersion"]
            metadata = {"name": self._settings.node, "resourceVersion": version, **metadata}
            try:
                self._node = await self._cluster.merge(
                    NODE, {"metadata": metadata}, node_labels.MANAGER
                )
            except ClusterError as error:
                if error.status != CONFLICT:
                    raise
                self._node = await node_watch.find_node(self._cluster, self._settings.node)
                continue
            was_changed = node_labels.state(node) == "pending" or "annotations" in metadata
            if state in ("success", "failed") and was_changed:
                await self._tell(state == "success", reason)
            return

    async def _tell(self, is_applied: bool, reason: str) -> None:  # noqa: FBT001
        """Make an Event; without the right to do so, the annotation says the same."""
        what = Condition(
            is_applied,
            APPLIED if is_applied else FAILED,
            reason or f"MIG configuration {self._name} is applied",
        )
        with self._told():
            await self._cluster.create(EVENT, event(self._settings.node, what))

    async def _leave(self) -> None:
        """Resume the operator's DaemonSets; if this fails, the next start does it."""
        self._pauses = False
        try:
            await waiting.within(LEAVE_S, self._show())
        except (ClusterError, asyncio.TimeoutError) as error:
            self._log.warning(f"labels of DaemonSets stay paused: {error}")

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function in a thread; if this task is canceled, the function ends first."""
        work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise
        except OSError as error:
            raise UsageError(str(error)) from error
