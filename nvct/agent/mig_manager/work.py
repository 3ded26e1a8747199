# SPDX-License-Identifier: Apache-2.0
"""The MIG manager's work on the machine, in a thread: look, plan, change, make nodes.

It asks NVML by the client that all tasks share: there is one session, and calls follow one
another.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import NoneType
from typing import Any, TypeVar

from nvct import typed
from nvct.agent.core.instance import FOLDER
from nvct.agent.mig_manager.settings import Settings
from nvct.agent.nvml import mig_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError, UsageError
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.mig_model import CHANGES, MigChange, MigGpu, MigState
from nvct.host.roots import Roots
from nvct.linux import files
from nvct.mig import apply, export, pause, plan, smi
from nvct.mig.apply import Machine
from nvct.mig.config import Spec
from nvct.mig.holders import Holder
from nvct.mig.journal import Journal
from nvct.mig.plan import Plan

DROP_IN = '[Service]\nEnvironment="MIG_PARTED_SELECTED_CONFIG={name}"\n'


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to make; each GPU that changes keeps its MIG devices in `stays`."""

    stays: Mapping[str, Collection[tuple[int, int]]]
    holders: Sequence[Holder]
    changes_mode: bool

    def concerns(self, gpu: str, instance: tuple[int, int] | None) -> bool:
        """Return whether a device would not stay."""
        return gpu in self.stays and instance not in self.stays[gpu]


@dataclass(kw_only=True)
class Work:
    """The machine and its configurations; NvctError after a failure says what is left."""

    machine: Machine
    config_file: str
    state_file: str  # the drop-in of the host's unit
    make_nodes: Callable[[], None] = field(default=lambda: None)
    # returns the MIG strategy by which this agent offers GPUs, "" if it offers none
    strategy: Callable[[], str] = field(default=lambda: "")
    # MIG devices of pods: UUID of the GPU, ids of the instances
    in_use: Collection[tuple[str, int, int]] = ()

    def look(self, name: str) -> Change | None:
        """Return what has to change for a configuration, None if the machine has it.

        An interrupted change is ended first.

        Raises:
            UsageError: there is no such configuration, or the GPUs cannot have it.
            DocumentError: the file is malformed.
            HostError: pods could not use the GPUs, by the MIG strategy.
            HostError, NvmlError: it is unknown what the machine has, or an interrupted change
                cannot be ended.
        """
        machine = self.machine
        if os.path.exists(machine.journal.path):
            with machine.journal.lock():
                apply.recover(machine)
            self.make_nodes()
        state = machine.session.mig()
        specs = self._specs(state, name)
        if not plan.make(state, specs).changed(state):
            return None  # so all processes need not be looked at
        made = self._plan(state, specs, held=apply.held(machine, state))
        changed = made.changed(state)
        if self.strategy() == "none" and any(made.layouts[gpu.uuid].enabled for gpu in changed):
            raise HostError(
                "the device plugin offers whole GPUs (its MIG strategy is none): no pod could use "
                "GPUs in MIG mode",
                hint="set mig.strategy=single or mixed (MIG_STRATEGY); nothing was changed",
            )
        return Change(
            stays=apply.staying(changed, made),
            holders=apply.in_the_way(machine, changed, made),
            changes_mode=bool(made.mode_changes(state)),
        )

    def apply(self, name: str) -> None:
        """Give the machine a configuration."""
        specs = self._specs(self.machine.session.mig(), name)

        def resolve(state: MigState, *, held: Collection[tuple[str, int, int]]) -> Plan:
            return self._plan(state, specs, held=held)

        self.make_nodes()  # that of mig/config, by which instances are made
        apply.apply(self.machine, resolve)
        self.make_nodes()

    def renew(self, gpu: str, gi: int) -> None:
        """Destroy a GPU instance and make it again."""
        apply.renew(self.machine, gpu, gi)
        self.make_nodes()

    def set_modes(self, name: str) -> None:
        """Set the MIG modes of a configuration; they can stay pending until a reboot."""
        machine = replace(self.machine, skip_reset=True)
        specs = self._specs(machine.session.mig(), name)
        apply.apply(machine, partial(plan.make, specs=specs, mode_only=True))

    def persist(self, name: str) -> None:
        """Write the configuration's name to nvidia-mig-manager.service's drop-in, if that exists.

        OSError if the drop-in cannot be written.
        """
        text = DROP_IN.format(name=name)
        if os.path.exists(self.state_file) and files.read_bytes(self.state_file).decode() != text:
            files.write_atomic(self.state_file, text.encode(), mode=0o644)

    def _plan(
        self, state: MigState, specs: Sequence[Spec], *, held: Collection[tuple[str, int, int]]
    ) -> Plan:
        return plan.make(state, specs, held={*held, *self.in_use})

    def _specs(self, state: MigState, name: str) -> Sequence[Spec]:
        text = ""
        if self.config_file:
            try:
                text = files.read_bytes(self.config_file).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{self.config_file} cannot be read: {error}") from error
        return export.find(state, text, name)


def machine_of(session: AgentSession) -> Machine:
    """Return the machine that an agent changes, with its own folder."""
    return Machine(
        session=session,
        roots=session.roots,
        journal=Journal(FOLDER),
        reset=session.reset,
        pause=partial(pause.announce, FOLDER, wait_s=pause.PAUSE_S),
        find_holders=None if session.client.chooses_library else session.holders,
    )


def of_agent(session: AgentSession, known: Settings, status: Callable[[], dict[str, Any]]) -> Work:
    """Return the work of this agent; `status` returns what its /status shows."""
    return Work(
        machine=machine_of(session),
        config_file=known.config_file,
        state_file=f"{known.host_root}{known.state_file}",
        make_nodes=session.make_nodes,
        strategy=partial(_strategy, status),
    )


def _strategy(status: Callable[[], dict[str, Any]]) -> str:
    """Return the MIG strategy of the agent's device plugin, "" if it offers nothing."""
    tasks = status().get("tasks", ())
    details = (task["detail"] for task in tasks if task["name"] == "device-plugin")
    return next((entry["mig_strategy"] for detail in details for entry in detail
                 if "mig_strategy" in entry), "")  # fmt: skip


T = TypeVar("T")


class AgentSession:
    """NVML for code in threads; all methods except `begin` block, so the event loop calls none.

    NvctError if NVML fails, or is not to be used.
    """

    pid: int | None = None  # not known: the worker is a descendant of this process

    def __init__(self, client: NvmlClient, roots: Roots) -> None:
        self.client = client
        self.roots = roots
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = float("inf")

    @property
    def refusal(self) -> str:
        """Return why the driver must not be used now, "" if it can be."""
        return self.client.refusal

    def begin(self, limit_s: float = float("inf")) -> None:
        """Use the running event loop; after the limit, the next change is refused."""
        self._loop = asyncio.get_running_loop()
        self._until = time.monotonic() + limit_s

    def mig(self) -> MigState:
        """Return modes, profiles and instances of all GPUs."""
        if self.client.chooses_library:
            self.client.library = nvml_library(self.roots)
        return self._wait(self.client.mig())

    def change_mig(self, change: MigChange) -> Any:  # noqa: ANN401 - of the type in CHANGES
        """Make one change to MIG, and return its answer.

        HostError after the limit; the rollback that follows has no limit.
        """
        if time.monotonic() > self._until:
            self._until = float("inf")
            raise HostError("the change of MIG takes too long")
        verb, answer = CHANGES[type(change)]
        return self._wait(self.client.call(verb, answer, typed.dump(change)))

    def close(self) -> None:
        """Do nothing: `reset` keeps NVML's handles closed."""

    def reset(self, bus_ids: Sequence[str]) -> None:
        """Reset GPUs, while NVML has no handles."""
        if not self.client.chooses_library:
            self._wait(self.client.call(mig_verbs.RESET, NoneType, {"gpus": list(bus_ids)}))
            return
        limit_s = min(smi.RESET_S, max(1.0, self._until - time.monotonic()))
        program = smi.find(self.roots.driver_root, self.client.library)

        async def run() -> None:
            async with self.client.released(int(smi.RESET_S)):
                await asyncio.to_thread(smi.reset, bus_ids, program, limit_s)

        self._wait(run())

    def holders(
        self, gpus: Sequence[MigGpu], instances: Collection[tuple[str, int, int]] | None
    ) -> list[Holder]:
        """Return the processes that have GPUs open, as the container with NVML sees them."""
        arguments = mig_verbs.request_holders(gpus, instances)
        answer = self.client.call(mig_verbs.HOLDERS, tuple[Holder, ...], arguments)
        return list(self._wait(answer))

    def make_nodes(self) -> None:
        """Make missing device nodes of MIG devices, here or by the worker."""
        if self.client.chooses_library:
            mig_verbs.make_nodes(self.roots)
        else:
            self._wait(self.client.call(mig_verbs.NODES, NoneType, {}))

    def _wait(self, work: Coroutine[object, object, T]) -> T:
        assert self._loop is not None  # noqa: S101 - begin comes first
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
