# SPDX-License-Identifier: Apache-2.0
"""The task `heal`: takes a GPU that has failed from its pods, resets it, checks it, gives it back.

`machine` decides; this module asks and acts. Each step is written to disk before it is taken, so
that an agent that was killed goes on or begins again. The Node shows what others have to do.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from nvct import typed
from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.core.task import Task
from nvct.agent.core.waiting import Backoff, tick
from nvct.agent.heal import brakes, machine, node, settings
from nvct.agent.heal.brakes import Brakes
from nvct.agent.heal.gpus import Gpus
from nvct.agent.heal.machine import HEALING, LEVELS, STEPS, TASK, Look, Record, Rules
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.machine import Health
from nvct.agent.health.store import Store
from nvct.agent.kubernetes.cluster import CONFLICT, NODE, NOT_FOUND, Cluster, ClusterError
from nvct.agent.kubernetes.node_pods import PodDevice, Pods, protection
from nvct.agent.kubernetes.node_watch import find_node
from nvct.agent.web.exposition import Family, family
from nvct.errors import HostError, NvctError
from nvct.host.faults import REMEDIES
from nvct.mig.smi import IN_USE, blocking

FILE = "heal.json"
LOOK_S = 1.0
SHOW_S = 60.0
"""How often a Node with our taint or label is read: others may have changed or replaced it."""
RETRY_S = 10.0
"""The longest pause after a look that failed."""
IN_USE_BY_SMI = "in use"
"""A part of nvidia-smi's message, in lower case, if any process has the GPU open."""
EVENTS: Mapping[machine.Step, tuple[str, str]] = {
    "quarantined": ("GPUQuarantined", "is quarantined"),
    "evicting": ("GPUEvicting", "has its pods evicted"),
    "releasing": ("GPUReleasing", "is being closed by all processes before a reset"),
    "resetting": ("GPUResetting", "is being reset"),
    "checking": ("GPUChecking", "was reset, and is being checked"),
    "probation": ("GPUHealed", "no longer shows an error, and is on probation"),
    "requested": ("GPUNeedsHelp", "needs somebody to act"),
    "failed": ("GPUHealingFailed", "is not healed"),
}
"""The reason of each step's Event, and the start of its message, after the GPU's UUID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A record on disk, with its GPU."""

    gpu: str
    record: Record


def make(context: Context) -> Healing:
    """Return the task.

    Raises:
        UsageError: a setting is wrong.
        ClusterError: there is no access to the cluster.
    """
    known = context.load(settings.resolve)
    cluster = context.connect()
    brake = None
    if known.rules.allows("evicting"):
        limits, resets = brakes.limits(context.env), Store(context.folder, name=brakes.RESETS)
        brake = Brakes(cluster, context.node, limits, resets, context.journal)
    return Healing(
        known.rules,
        cluster=cluster,
        node=context.node,
        pods=Pods(context.client, cluster, node=context.node),
        gpus=Gpus(context.client, context.env, groups=known.group),
        health=lambda: context.shared.health,
        store=Store(context.folder, name=FILE),
        log=context.journal,
        brake=brake,
    )


class Healing(Task):
    """The task of the agent that heals GPUs.

    Args:
        health: returns the health of the GPUs, None while no task watches it.
        brake: None if nothing limits how many nodes heal at once.
    """

    def __init__(
        self,
        rules: Rules,
        *,
        cluster: Cluster,
        node: str,
        pods: Pods,
        gpus: Gpus,
        health: Callable[[], HealthEngine | None],
        store: Store,
        log: Log,
        brake: Brakes | None = None,
    ) -> None:
        super().__init__(log)
        self._rules, self._node, self._brake = rules, node, brake
        self._cluster, self._pods, self._gpus = cluster, pods, gpus
        self._health, self._store = health, store
        self._records: dict[str, Record] = {}
        self._steps: Counter[tuple[str, str]] = Counter()
        self._shown: tuple[bool, str] | None = None
        self._show_at = 0.0
        self._holds_brake = True  # perhaps, from a process that was killed

    def describe(self) -> list[dict[str, object]]:
        """Return the level, and the GPUs that are being healed, as JSON data."""
        now = time.monotonic()
        return [
            {
                "remediation": self._rules.level,
                "group": self._gpus.groups,
                "evict_s": self._rules.evict_s,
                "problem": self.problem.text or self._store.problem,
                "gpus": [
                    {
                        "uuid": gpu, "step": record.step, "reason": record.reason,
                        "action": record.action, "seconds": round(now - record.since, 1),
                    }
                    for gpu, record in self._records.items()
                ],
            }
        ]  # fmt: skip

    def metrics(self) -> Iterator[Family]:
        """Yield the step of each GPU that is being healed, and how often each step was taken."""
        rows = [
            (int(record.step == step), {"UUID": gpu, "step": step})
            for gpu, record in self._records.items()
            for step in STEPS
        ]
        yield family("nvct_heal_step", "Step of a GPU's healing: 1 for the one it is in.", rows)
        counts = [
            (count, {"UUID": gpu, "step": step}) for (gpu, step), count in self._steps.items()
        ]
        yield family("nvct_heal_steps_total", "How often a step of the healing was taken.", counts)

    async def run(self) -> None:
        """Heal until canceled."""
        try:
            while (health := self._health()) is None:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(LOOK_S)
            self._resume()
            backoff = Backoff(RETRY_S)
            while True:
                if await self._look(health):
                    backoff.reset()
                await asyncio.sleep(backoff.next_s() if self.problem.text else tick(LOOK_S))
        finally:
            health = self._health()
            if health is not None:
                health.withhold({})
            if self._brake is not None:
                await self._brake.close()
            await self._pods.close()
            await self._cluster.close()

    def _resume(self) -> None:
        """Take over the healing that another process of this boot has begun."""
        document = self._store.read()
        if not isinstance(document, dict):
            return
        try:
            saved = typed.load(tuple[Saved, ...], document.get("gpus"), "gpus")
        except typed.MalformedError as error:
            self._log.warning(f"it is not known which GPUs were being healed: {error}")
            return
        now = time.monotonic()
        self._records = {
            each.gpu: machine.resumed(each.record, now, self._rules) for each in saved
        }

    async def _look(self, health: HealthEngine) -> bool:
        """Take the next step of each GPU, and update the Node; return whether all of it worked.

        A GPU that does not answer delays no other GPU.
        """
        known = health.of_gpus()
        steps: list[Callable[[], Awaitable[None]]] = [
            *(partial(self._advance, health, gpu, state) for gpu, state in known.items()),
            self._free_others,
            partial(self._show, known),
        ]
        failure: NvctError | None = None
        for work in steps:
            try:
                await work()
            except NvctError as error:
                failure = error
        if failure is None:
            self.problem.clear()
        else:
            self.problem.tell(failure)
        return failure is None

    async def _advance(self, health: HealthEngine, gpu: str, state: Health) -> None:
        before = self._records.get(gpu)
        if before is None and state.state != "unhealthy":
            return
        try:
            seen = await self._seen(health, gpu, before, state)
        except NvctError as error:
            seen = Look(health=state, unknown=error.message)
        after = machine.step(before, seen, time.monotonic(), self._rules)
        if after != before:
            self._keep(health, gpu, before, after)
        if seen.unknown:
            raise HostError(seen.unknown)

    def _keep(
        self, health: HealthEngine, gpu: str, before: Record | None, after: Record | None
    ) -> None:
        """Write a change of a record to disk, before the step is taken, and report it."""
        self._records.pop(gpu, None)
        if after is not None:
            self._records[gpu] = after
        saved = [typed.dump(Saved(gpu=uuid, record=each)) for uuid, each in self._records.items()]
        self._store.write({"gpus": saved})
        health.withhold(
            {
                other: f"it will be reset together with {uuid}"
                for uuid, record in self._records.items() if record.step in HEALING
                for other in record.gpus if other != uuid
            }
        )  # fmt: skip
        if after is None or before is None or after.step != before.step:
            self._tell(health, gpu, after)

    def _tell(self, health: HealthEngine, gpu: str, after: Record | None) -> None:
        """Report a step: in the log, in `nvct log`, by an Event and a counter."""
        if after is None:
            self._log.decided(TASK, "changed", gpu, result="healed")
            return
        self._steps[gpu, after.step] += 1
        event, words = EVENTS[after.step]
        reason = f": {after.reason}" if after.reason else ""
        remedy = f"; {REMEDIES[after.action]}" if after.action else ""
        text = f"{words}{reason}{remedy}"
        self._log.decided(TASK, "changed", gpu, result=text)
        is_warning = after.step in ("requested", "failed", "evicting")
        health.note(
            gpu, event, f"{gpu} {text}", is_warning=is_warning,
            of_pods=after.step == "evicting",  # other steps' messages name other tenants' pods
        )  # fmt: skip

    async def _seen(
        self, health: HealthEngine, gpu: str, record: Record | None, state: Health
    ) -> Look:
        """Do what a step does, and return the facts that it needs."""
        seen = Look(health=state)
        if record is None or (state.state != "unhealthy" and record.step != "resetting"):
            return seen
        if record.step == "quarantined":
            return await self._begun(seen, gpu, record)
        if record.step == "evicting":
            return replace(seen, users=await self._evicted(record.gpus))
        if record.step == "releasing":
            return replace(seen, holders=await self._gpus.holders(record.gpus))
        return await self._reset(seen, health, record) if record.step == "resetting" else seen

    async def _reset(self, seen: Look, health: HealthEngine, record: Record) -> Look:
        """Reset a GPU, and those that are reset with it, unless it was reset too often."""
        refusal = self._brake.count_reset(record.gpus) if self._brake else ""
        if refusal:
            return replace(seen, outcome=refusal)
        try:
            await self._gpus.reset(record.gpus)
        except NvctError as error:
            return await self._not_reset(replace(seen, outcome=error.message), record.gpus)
        health.note_reset(record.gpus)
        return replace(seen, outcome="")

    async def _not_reset(self, seen: Look, gpus: tuple[str, ...]) -> Look:
        """Return which processes prevented a reset; if some did, the reset does not count."""
        refusal = seen.outcome or ""
        holders: tuple[str, ...] | None = (refusal.partition(IN_USE)[2],)
        if IN_USE not in refusal:
            which = list if IN_USE_BY_SMI in refusal.lower() else blocking
            holders = await self._gpus.holders(gpus, which)
        if holders and self._brake is not None:
            self._brake.uncount_reset(gpus)
        return replace(seen, holders=holders)

    async def _begun(self, seen: Look, gpu: str, record: Record) -> Look:
        """After the quarantine, find the GPUs to reset together, and take the brake."""
        waited_s = time.monotonic() - record.since
        if not self._rules.allows("evicting") or waited_s < self._rules.quarantine_s:
            return seen
        gpus: tuple[str, ...] = (gpu,)
        refusal = ""
        if self._rules.allows("releasing") and seen.health.action == "reset":
            gpus, refusal = await self._gpus.together(gpu)
        pods = await self._pods.devices(gpus)
        wait = "; ".join(filter(None, map(protection, pods)))  # no Lease is taken to wait for pods
        if not wait and self._brake is not None:
            wait = await self._brake.take()
        self._holds_brake |= not wait
        return replace(seen, gpus=gpus, refusal=refusal, wait=wait)

    async def _evicted(self, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """Evict the pods that have GPUs, none if one is protected; return who is left, and why."""
        found = await self._pods.devices(gpus)
        if kept := tuple(filter(None, map(protection, found))):
            return kept
        pods = {(pod.namespace, pod.pod): pod for pod in found}
        return tuple([f"{pod}{await self._why_not_evicted(pod)}" for pod in pods.values()])

    async def _why_not_evicted(self, pod: PodDevice) -> str:
        """Evict a pod; return why that is refused, "" if the pod is about to end."""
        if pod.found and pod.found["metadata"].get("deletionTimestamp"):
            return ""
        try:
            await self._pods.evict([pod])
        except ClusterError as error:
            if not error.status:
                raise
            return f", and {error.message}"
        return ""

    async def _free_others(self) -> None:
        """Release the brake when this node no longer heals, so that other nodes can."""
        heals = any(record.step in HEALING for record in self._records.values())
        if heals and self._brake is not None:
            await self._brake.keep()
        if self._holds_brake and not heals:
            if self._brake is not None:
                await self._brake.release()
            self._holds_brake = False

    async def _show(self, known: Mapping[str, Health]) -> None:
        """Update the Node's taint and label, and ask for a reboot if one is requested."""
        has_failed = bool(known) and all(each.state == "unhealthy" for each in known.values())
        request = node.worst(record.action for record in self._records.values() if record.action)
        wanted, shown = (has_failed, request), self._shown
        is_nothing = wanted == (False, "")
        if shown == wanted and (is_nothing or time.monotonic() < self._show_at):
            return
        found = await find_node(self._cluster, self._node)
        patch = node.patch(found, has_failed=has_failed, request=request)
        if patch:
            await self._cluster.merge(NODE, patch, node.MANAGER)
        is_new = shown is None or shown[1] != request
        if request == "reboot" and is_new and self._rules.level == LEVELS[-1]:
            try:
                await self._cluster.create(node.REBOOT, node.reboot(found))
            except ClusterError as error:  # without NVSentinel, only the label asks
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
            else:
                self._log.warning(f"NVSentinel is asked to reboot {self._node}")
                self._log.decided(TASK, "changed", self._node, result="a RebootNode was made")
        self._shown, self._show_at = wanted, time.monotonic() + SHOW_S
