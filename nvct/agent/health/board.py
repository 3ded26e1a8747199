# SPDX-License-Identifier: Apache-2.0
"""The health of all GPUs and MIG instances of a node, its changes, and what NVML's values mean.

An error of a GPU concerns all instances on it; an error of an instance concerns only that one.
Contract: no I/O; the caller passes the time and NVML's values (numbers: nvml.h).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from nvct import typed
from nvct.agent.health import machine
from nvct.agent.health.machine import Event, Forget, Health, Look, Rules, State, Xid
from nvct.host import faults
from nvct.host.faults import ACTIONS, RESET_REQUIRED, Fault
from nvct.host.nvml.model import XidEvent
from nvct.oci.jsontext import Json

Instance: TypeAlias = tuple[int, int]


TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.nvml.sample_model import GpuCondition  # asked for after the first list

WHOLE = -1  # In place of the id of an instance
RESET_BY_RESET = {"ecc_corrected": 1.0, "ecc_uncorrected": 1.0, "energy": 0.5}
"""Counters that only increase until the GPU is reset or the driver loaded again. A value below
this part of the last one shows that this has happened."""


class Key(NamedTuple):
    """A GPU, or an instance of it by its two ids; an id is WHOLE if the key is for all of them."""

    gpu: str
    gi: int = WHOLE
    ci: int = WHOLE

    def concerns(self, gpu: str, instance: Instance | None) -> bool:
        """Return whether an error of this key concerns a device; None is a whole GPU."""
        if self.gpu != gpu or instance is None:
            return self.gpu == gpu
        return self.gi in (WHOLE, instance[0]) and self.ci in (WHOLE, instance[1])

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of its metrics."""
        ids = {"GPU_I_ID": self.gi, "GPU_CI_ID": self.ci}
        texts = {name: "" if number == WHOLE else str(number) for name, number in ids.items()}
        return {"UUID": self.gpu, **texts}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook(Look):
    """A look at a GPU, with the UUIDs of its MIG devices; None if they are unknown."""

    instances: Mapping[Instance, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a device's state or action, with the UUIDs of all devices that it concerns."""

    key: Key
    before: Health
    after: Health
    devices: tuple[str, ...] = ()


@dataclass(slots=True)
class Board:
    """The health of all GPUs and MIG instances of a node."""

    rules: Rules
    # of all GPUs that were seen, and of the instances that had an error
    states: dict[Key, Health] = field(default_factory=dict)
    # UUIDs of MIG devices by the ids of their instances, by GPU
    instances: dict[str, Mapping[Instance, str]] = field(default_factory=dict)
    _application_xids: dict[Key, int] = field(default_factory=dict)

    def of(self, gpu: str, instance: Instance | None = None) -> Health:
        """Return the health of a device: the worst of all that concern it."""
        concerned = [h for key, h in self.states.items() if key.concerns(gpu, instance)]
        return max(concerned, key=_badness, default=Health())

    def note_xid(self, event: XidEvent, fault: Fault, now: float) -> list[Change]:
        """Note an XID that asks for a reset or more; of every GPU if it names none."""
        return self._step(self._concerned(event), Xid(fault=fault), now)

    def devices_of(self, event: XidEvent) -> tuple[str, ...]:
        """Return the UUIDs of the devices that an XID concerns."""
        return tuple(uuid for key in self._concerned(event) for uuid in self.devices(key))

    def note_looks(self, looks: Mapping[str, GpuLook], now: float) -> list[Change]:
        """Note looks at GPUs, by UUID."""
        changes = []
        for gpu, found in looks.items():
            self.states.setdefault(Key(gpu), Health(since=now))
            if found.instances is not None:
                self._drop_instances(gpu, found.instances)
            changes += self._step([Key(gpu)], found, now)
            # Faults count for the GPU only, but a reset also concerns its instances.
            changes += self._step(self._instances(gpu), replace(found, faults=()), now)
        return changes

    def forget(self, now: float) -> list[Change]:
        """Consider every device healthy."""
        return self._step(list(self.states), Forget(), now)

    def broken_instances(self) -> set[tuple[str, int]]:
        """Return the GPU instances whose error ends when they are destroyed: GPU's UUID, id."""
        return {
            (key.gpu, key.gi)
            for key, health in self.states.items()
            if key.gi != WHOLE
            and (health.state, health.action) == ("unhealthy", "reset")
            and self.states.get(Key(key.gpu), Health()).is_offered
        }

    def forget_instance(self, gpu: str, gi: int, now: float) -> list[Change]:
        """Consider a GPU instance healthy, because a new one has its id now."""
        return self._step([key for key in self._instances(gpu) if key.gi == gi], Forget(), now)

    def note_application_xid(self, event: XidEvent) -> None:
        """Note an XID that an application has caused."""
        self._application_xids.update(dict.fromkeys(self._concerned(event), event.xid))

    def application_xid(self, gpu: str, instance: Instance | None) -> int:
        """Return the last XID of an application on a device since the agent's start, 0 if none."""
        xids = [x for key, x in self._application_xids.items() if key.concerns(gpu, instance)]
        return xids[-1] if xids else 0

    def rows(self) -> list[tuple[int, dict[str, str]]]:
        """Return the samples of the metric: 1 for the state that a device is in, else 0."""
        return [
            (int(health.state == state), {**key.labels, "state": state})
            for key, health in self.states.items()
            for state in machine.STATES
        ]

    def describe(self, now: float) -> list[Json]:
        """Return the devices that are not healthy, as /status shows them."""
        return [
            {
                "uuid": key.gpu,
                "gi": key.gi,
                "ci": key.ci,
                "state": health.state,
                "action": health.action,
                "reason": health.reason,
                "seconds": round(now - health.since, 1),
                "returns": len(health.returns),
            }
            for key, health in self.states.items()
            if health.state != "healthy"
        ]

    def to_dict(self) -> dict[str, Json]:
        """Return the states as JSON data."""
        states = self.states.items()
        return {"devices": [{**k._asdict(), **typed.dump(health)} for k, health in states]}

    def load(self, document: Json) -> None:
        """Take over states that `to_dict` returned; MalformedError for other data."""
        devices = document.get("devices") if isinstance(document, dict) else None
        states = {}
        for values in typed.load(tuple[dict[str, object], ...], devices, "devices"):
            key = [values.pop(name, None) for name in Key._fields]
            states[typed.load(Key, key, "a device")] = typed.load(Health, values, "its health")
        self.states = states

    def knows(self, event: XidEvent) -> bool:
        """Return whether the instance of an event is known; True for an event of a whole GPU."""
        known = self.instances.get(event.uuid, {})
        return event.gi == WHOLE or any(gi == event.gi for gi, _ in known)

    def devices(self, key: Key) -> tuple[str, ...]:
        """Return the UUIDs of a device, and of the MIG devices on it."""
        on_gpu = self.instances.get(key.gpu, {}).items()
        uuids = tuple(uuid for ids, uuid in on_gpu if key.concerns(key.gpu, ids))
        return uuids if key.gi != WHOLE else (key.gpu, *uuids)

    def _concerned(self, event: XidEvent) -> list[Key]:
        if not event.uuid:
            return [key for key in self.states if key.gi == WHOLE]
        if event.gi == WHOLE or not self.instances.get(event.uuid, {}):
            return [Key(event.uuid)]
        return [Key(event.uuid, event.gi, event.ci)]

    def _drop_instances(self, gpu: str, present: Mapping[Instance, str]) -> None:
        """Forget the instances that were destroyed: later ones with their ids are new."""
        self.instances[gpu] = present
        for key in self._instances(gpu):
            if not any(key.concerns(gpu, instance) for instance in present):
                del self.states[key]

    def _instances(self, gpu: str) -> list[Key]:
        return [key for key in self.states if key.gpu == gpu and key.gi != WHOLE]

    def _step(self, keys: Iterable[Key], event: Event, now: float) -> list[Change]:
        changes = []
        for key in keys:
            before = self.states.get(key) or Health(since=now)
            after = machine.step(before, event, now, self.rules)
            self.states[key] = after
            if (before.state, before.action) != (after.state, after.action):
                devices = self.devices(key)
                changes.append(Change(key=key, before=before, after=after, devices=devices))
        return changes


def _badness(health: Health) -> tuple[int, int]:
    order: tuple[State, ...] = ("healthy", "suspect", "probation", "unhealthy")
    return order.index(health.state), ACTIONS.index(health.action) if health.action else -1


def look(
    gpu: GpuCondition, before: Mapping[str, float], *, counts: bool = True, was_reset: bool = False
) -> GpuLook:
    """Return a look at a GPU.

    Args:
        before: NVML's values at the look before, {} if there was none.
        counts: whether faults count; False if all checks are switched off.
        was_reset: whether the GPU is known to have been reset since.
    """
    return GpuLook(
        faults=tuple(faults.of_condition(gpu)) if counts else (),
        asks=gpu.values.get("recovery_action", 0) != 0 or gpu.code == RESET_REQUIRED,
        was_reset=was_reset
        or any(
            name in gpu.values and gpu.values[name] < before.get(name, 0) * part
            for name, part in RESET_BY_RESET.items()
        ),
        instances=None if gpu.error else {(mig.gi, mig.ci): mig.uuid for mig in gpu.mig},
    )


def hangs(reason: str) -> GpuLook:
    """Return the look at a GPU that does not answer."""
    return GpuLook(faults=(Fault(action="reset", reason=faults.hanging(reason)),))
