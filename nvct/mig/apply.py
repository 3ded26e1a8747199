# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan completely or not at all.

Order: resolve the plan for every GPU; run hooks; look for holders; write the journal; destroy
instances, set modes, reset GPUs if needed, create instances; compare NVML's report with the plan;
remove the journal. A failure restores the former layout. After a kill, the journal is left, and
the next start restores the former layout unless the new one is complete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from nvct.errors import HostError, NvctError
from nvct.host.nvml import mig_model
from nvct.host.nvml.mig_model import CreateCompute, DestroyCompute, MigChange, MigGpu, MigState
from nvct.host.roots import Roots
from nvct.mig import plan as changes
from nvct.mig.holders import Holder, holders, own_processes
from nvct.mig.journal import Journal
from nvct.mig.layout import COMPUTE_SLICES, Layout, layout_of, part_of
from nvct.mig.pause import Paused
from nvct.mig.plan import Plan

Instances: TypeAlias = "Collection[tuple[str, int, int]] | None"


class HeldError(HostError):
    """A process has a device open that would change; nothing was changed."""


class Resolve(Protocol):
    """Makes a plan for a machine's state; keeps MIG devices in use (`held`) if possible."""

    def __call__(self, state: MigState, *, held: Collection[tuple[str, int, int]]) -> Plan:
        """Return the plan."""


class Session(Protocol):
    """The part of `nvct.host.nvml.session.NvmlSession` that changes need."""

    @property
    def pid(self) -> int | None:
        """The worker's process id, None if unknown."""

    def mig(self) -> MigState:
        """Return modes, profiles and instances of all GPUs."""
        ...

    def change_mig(self, change: MigChange) -> Any:  # noqa: ANN401 - of the type in CHANGES
        """Make one change to MIG, and return its answer."""

    def close(self) -> None:
        """Close NVML's handles; the next call opens new ones."""


HARMLESS = ("nvidia-persiste",)
"""Commands (at most 15 characters) that may have a GPU open during a change."""
AGENT = "nvct-nvml"
"""Command of an agent's NVML process, which closes its handles when a change is announced."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that a change is for, and how to make the change."""

    session: Session
    roots: Roots
    journal: Journal
    reset: Callable[[Sequence[str]], None]
    hook: Callable[[str], None] = lambda _: None
    # keeps devices from containers while a change lasts
    pause: Callable[[Paused], AbstractContextManager[None]] = lambda _: contextlib.nullcontext()
    skip_reset: bool = False  # leave a mode that needs a reset pending
    # change devices that processes hold, too; NVML may still refuse
    may_be_held: bool = False
    # like `nvct.mig.holders.holders`, for roots that this process cannot read itself
    find_holders: Callable[[Sequence[MigGpu], Instances], list[Holder]] | None = None

    def holders(self, gpus: Sequence[MigGpu], instances: Instances = None) -> list[Holder]:
        """Return the other processes that have GPUs, or only these MIG devices, open."""
        if self.find_holders is not None:
            return self.find_holders(gpus, instances)
        ignored = {*own_processes(self.roots), self.session.pid or 0}
        return holders(self.roots, gpus, instances, ignored)


def apply(machine: Machine, resolve: Resolve) -> bool:
    """Make a plan for the machine's state and carry it out; report whether anything changed.

    UsageError, before any change, if the plan is impossible. HostError if a process holds a device
    that changes, or a change failed; the former layout is restored, except on GPUs in the message.
    """
    with machine.journal.lock():
        recover(machine)
        resolve(machine.session.mig(), held=())  # refused before any hook runs
        machine.hook("apply-start")
        try:
            changed = _apply(machine, resolve)
        except BaseException:
            with contextlib.suppress(NvctError):  # the first error counts
                machine.hook("apply-exit")
            raise
        machine.hook("apply-exit")
        return changed


def renew(machine: Machine, uuid: str, gi: int) -> bool:
    """Destroy a GPU instance and create it again at its place; report whether it existed.

    HostError as `apply`, also if neither the old nor the new instance exists then.
    """
    with machine.journal.lock():
        recover(machine)
        state = machine.session.mig()
        gpu = next((gpu for gpu in state.gpus if gpu.uuid == uuid), None)
        is_there = gpu and any(instance.id == gi for instance in gpu.instances)
        if gpu is None or not is_there or gpu.pending != gpu.enabled:
            return False
        others = tuple(part_of(instance) for instance in gpu.instances if instance.id != gi)
        without = Plan(layouts={uuid: Layout(enabled=gpu.enabled, parts=others)})
        whole = Plan(layouts={uuid: layout_of(gpu)})
        _change(machine, state, [gpu], without, whole)
        return True


def recover(machine: Machine) -> bool:
    """End an interrupted change with the former or the new layout; report whether there was one.

    HostError if neither layout can be made, and the journal stays; DocumentError if the journal is
    damaged.
    """
    interrupted = machine.journal.read()
    if interrupted is None:
        return False
    before, after = interrupted
    state = machine.session.mig()
    if after.changed(state):
        with machine.pause(staying(before.changed(state), before)):
            _go_back(machine, before)
    machine.journal.close()
    return True


def _apply(machine: Machine, resolve: Resolve) -> bool:
    state = machine.session.mig()
    plan = resolve(state, held=held(machine, state))
    changed = plan.changed(state)
    if not changed:
        return False
    if plan.mode_changes(state):
        machine.hook("pre-apply-mode")
    if any(plan.layouts[gpu.uuid].parts or gpu.instances for gpu in changed):
        machine.hook("pre-apply-config")
    after = Plan(layouts={gpu.uuid: plan.layouts[gpu.uuid] for gpu in changed})
    _change(machine, state, changed, after)
    return True


def _change(machine: Machine, state: MigState, changed: Sequence[MigGpu], *plans: Plan) -> None:
    """Carry out plans, one after another, or restore the former layout.

    HeldError, before any change, if a process has a device open that the first plan changes.
    """
    first = plans[0]
    _refuse_if_held(machine, changed, first, harmless=AGENT)
    with machine.pause(staying(changed, first)):
        _refuse_if_held(machine, changed, first)  # a container may have started just now
        before = Plan(layouts={gpu.uuid: layout_of(gpu) for gpu in changed})
        machine.journal.open(before, plans[-1])
        try:
            for plan in plans:
                _carry_out(machine, state, plan, changes.steps)
                state = _verify(machine, plan)
        except BaseException as error:
            state = _go_back(machine, before)
            machine.journal.close()
            if isinstance(error, NvctError):
                raise _failed(machine, changed, state, error) from error
            raise
        machine.journal.close()


def _carry_out(
    machine: Machine, state: MigState, plan: Plan, steps_of: Callable[..., list[changes.Step]]
) -> None:
    """Make the changes of a plan: on all GPUs, destroy first, then create."""
    gpus = [gpu for gpu in state.gpus if gpu.uuid in plan.layouts]
    steps = {gpu.uuid: steps_of(gpu, plan.layouts[gpu.uuid]) for gpu in gpus}
    pending = []
    for gpu in gpus:
        for step in steps[gpu.uuid]:
            if _creates(step):
                continue
            with _naming(gpu, step):
                if not _make(machine, gpu.uuid, step):
                    pending.append(gpu.bus_id)
    if pending and not machine.skip_reset:
        machine.session.close()  # open handles would make the reset fail
        machine.reset(pending)
    for gpu in gpus:
        for step in filter(_creates, steps[gpu.uuid]):
            with _naming(gpu, step):
                _make(machine, gpu.uuid, step)


def _creates(step: changes.Step) -> bool:
    return isinstance(step, (changes.Create, CreateCompute))


def _make(machine: Machine, uuid: str, step: changes.Step) -> bool:
    """Make a change; report whether it is in force without a reset of the GPU."""
    change = machine.session.change_mig
    if not isinstance(step, changes.Create):
        return change(step) is not False
    kind, (start, size) = step.part.kind, step.part.placement
    gi = change(mig_model.Create(uuid=uuid, kind=kind, start=start, size=size))
    for part in sorted(step.part.compute, key=lambda each: -COMPUTE_SLICES.get(each.kind, 0)):
        change(CreateCompute(uuid=uuid, gi=gi, kind=part.kind, engine=part.engine))
    return True


@contextlib.contextmanager
def _naming(gpu: MigGpu, step: changes.Step) -> Iterator[None]:
    try:
        yield
    except NvctError as error:
        text = f"GPU {gpu.index}: {type(step).__name__}: {error.message}"
        raise HostError(text, hint=error.hint) from error


def _verify(machine: Machine, plan: Plan) -> MigState:
    state = machine.session.mig()
    wrong = [
        gpu
        for gpu in plan.changed(state)
        if not (machine.skip_reset and gpu.pending == plan.layouts[gpu.uuid].enabled)
    ]
    gone = plan.layouts.keys() - {gpu.uuid for gpu in state.gpus}
    if wrong or gone:
        names = ", ".join([*(f"GPU {gpu.index}" for gpu in wrong), *sorted(gone)])
        raise HostError(f"NVML accepts the changes but reports another layout: {names}")
    return state


def _go_back(machine: Machine, before: Plan) -> MigState:
    """Restore the layout of the GPUs that still exist; return NVML's state afterwards."""
    reason = ""
    for steps_of in (changes.steps, changes.from_nothing):
        try:
            _carry_out(machine, machine.session.mig(), before, steps_of)
            state = machine.session.mig()
            if not before.changed(state):
                return state
            reason = "NVML reports another layout"
        except NvctError as error:
            reason = error.message
    raise HostError(
        f"the MIG layout before the change cannot be restored: {reason}",
        hint=f"it is recorded in {machine.journal.path}; run nvct mig apply again when the GPUs "
        "are idle",
    )


def _failed(
    machine: Machine, changed: Sequence[MigGpu], state: MigState, error: NvctError
) -> HostError:
    found = machine.holders(changed)
    lost = {gpu.uuid for gpu in changed} - {gpu.uuid for gpu in state.gpus}
    gone = ", ".join(str(gpu.index) for gpu in changed if gpu.uuid in lost)
    but = f", except on GPU {gone}, which NVML no longer has" if gone else ""
    reason = f"{error.message}; the former layout is restored{but}"
    if found:
        return HostError(reason, hint="; ".join(map(str, found[:4])))
    return HostError(reason, hint=error.hint)


def staying(changed: Iterable[MigGpu], after: Plan) -> dict[str, set[tuple[int, int]]]:
    """Return the MIG devices that a change keeps, by GPU, with ids as in `pause`."""
    result = {}
    for gpu in changed:
        layout = after.layouts[gpu.uuid]
        result[gpu.uuid] = {(gi.id, ci.id) for gi in gpu.instances for ci in gi.compute}
        if gpu.enabled != layout.enabled:
            result[gpu.uuid] = set()
        for step in changes.steps(gpu, layout):
            if isinstance(step, DestroyCompute):
                result[gpu.uuid].discard((step.gi, step.ci))
    return result


def in_the_way(machine: Machine, changed: Sequence[MigGpu], after: Plan) -> list[Holder]:
    """Return the processes that use devices which a plan changes."""
    found: list[Holder] = []
    stays = staying(changed, after)
    for gpu in changed:
        instances = None
        if gpu.enabled == after.layouts[gpu.uuid].enabled:
            pairs = {(gi.id, ci.id) for gi in gpu.instances for ci in gi.compute}
            instances = {(gpu.uuid, gi, ci) for gi, ci in pairs - stays[gpu.uuid]}
        found += machine.holders([gpu], instances)
    return [holder for holder in found if holder.command not in HARMLESS]


def _refuse_if_held(
    machine: Machine, changed: Sequence[MigGpu], after: Plan, harmless: str = ""
) -> None:
    """Raise HeldError if a process, except those of one command, uses a device that changes."""
    found = [] if machine.may_be_held else in_the_way(machine, changed, after)
    found = [holder for holder in found if holder.command != harmless]
    if found:
        raise HeldError(
            "; ".join(map(str, found[:4])) + (" and others" if len(found) > 4 else ""),
            hint="end these processes, then apply again; nothing was changed",
        )


def held(machine: Machine, state: MigState) -> set[tuple[str, int, int]]:
    """Return the MIG devices that processes have open."""
    found = machine.holders(state.gpus)
    return {holder.instance for holder in found if holder.instance}
