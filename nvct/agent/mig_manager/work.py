# SPDX-License-Identifier: Apache-2.0
"""What the MIG manager does with the machine, in a thread: look, plan, change, make nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nvct.agent.core.instance import FOLDER
from nvct.agent.mig_manager.session import AgentSession
from nvct.agent.mig_manager.settings import Settings
from nvct.agent.nvml import mig_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError, UsageError
from nvct.host.nvml.mig_model import MigState
from nvct.linux import files
from nvct.mig import apply, export, pause, plan
from nvct.mig.apply import Machine
from nvct.mig.config import Spec
from nvct.mig.holders import Holder
from nvct.mig.journal import Journal
from nvct.mig.plan import Plan

DROP_IN = '[Service]\nEnvironment="MIG_PARTED_SELECTED_CONFIG={name}"\n'


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is to be changed.

    Attributes:
        stays: for each GPU that changes, by its UUID: the MIG devices that it keeps.
        holders: processes that use what changes.
        changes_mode: whether the MIG mode of a GPU changes.
    """

    stays: Mapping[str, Collection[tuple[int, int]]]
    holders: Sequence[Holder]
    changes_mode: bool

    def concerns(self, gpu: str, instance: tuple[int, int] | None) -> bool:
        """Return whether a device does not stay."""
        return gpu in self.stays and instance not in self.stays[gpu]


@dataclass(kw_only=True)
class Work:
    """The machine and its configurations.

    Attributes:
        config_file: the user's, "" for none.
        state_file: the drop-in of the host's unit.
        strategy: returns the MIG strategy by which this agent offers GPUs, "" if it offers none.
        in_use: MIG devices of pods: UUID of the GPU, ids of the instances.
    """

    machine: Machine
    config_file: str
    state_file: str
    make_nodes: Callable[[], None] = field(default=lambda: None)
    strategy: Callable[[], str] = field(default=lambda: "")
    in_use: Collection[tuple[str, int, int]] = ()

    def look(self, name: str) -> Change | None:
        """Return what has to change for a configuration, None if the machine has it.

        An interrupted change is ended first.

        Raises:
            UsageError: there is no such configuration, or the GPUs cannot have it.
            DocumentError: the file is malformed.
            HostError: pods could not use the GPUs, by the MIG strategy.
            HostError, NvmlError: the machine cannot be looked at, or an interrupted change ended.
        """
        machine = self.machine
        if os.path.exists(machine.journal.path):
            with machine.journal.lock():
                apply.recover(machine)
            self.make_nodes()
        state = machine.session.mig()
        specs = self._specs(state, name)
        if not plan.make(state, specs).changed(state):
            return None  # without a look at all processes
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
        """Give the machine a configuration.

        Raises:
            NvctError: it does not have it; the former layout is restored, or the message says what
                is not.
        """
        specs = self._specs(self.machine.session.mig(), name)

        def resolve(state: MigState, *, held: Collection[tuple[str, int, int]]) -> Plan:
            return self._plan(state, specs, held=held)

        self.make_nodes()  # that of mig/config, by which instances are made
        apply.apply(self.machine, resolve)
        self.make_nodes()

    def renew(self, gpu: str, gi: int) -> None:
        """Destroy a GPU instance and make it again.

        Raises:
            NvctError: as `apply`.
        """
        apply.renew(self.machine, gpu, gi)
        self.make_nodes()

    def set_modes(self, name: str) -> None:
        """Set the MIG modes of a configuration; they may stay pending until a reboot.

        Raises:
            NvctError: a mode cannot be set.
        """
        machine = replace(self.machine, skip_reset=True)
        specs = self._specs(machine.session.mig(), name)
        apply.apply(machine, partial(plan.make, specs=specs, mode_only=True))

    def persist(self, name: str) -> None:
        """Tell the host's unit nvidia-mig-manager.service the configuration, if it has one.

        Raises:
            OSError: its drop-in cannot be written.
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


def of_agent(
    client: NvmlClient,
    session: AgentSession,
    known: Settings,
    status: Callable[[], dict[str, Any]],
) -> Work:
    """Return the work of this agent; `status` returns what its /status shows."""
    roots = session.roots
    machine = Machine(
        session=session,
        roots=roots,
        journal=Journal(FOLDER),
        reset=session.reset,
        pause=partial(pause.announce, FOLDER, wait_s=pause.PAUSE_S),
        find_holders=None if client.chooses_library else session.holders,
    )
    return Work(
        machine=machine,
        config_file=known.config_file,
        state_file=f"{known.host_root}{known.state_file}",
        make_nodes=partial(mig_verbs.make_nodes, roots)
        if client.chooses_library
        else session.make_nodes,
        strategy=partial(_strategy, status),
    )


def _strategy(status: Callable[[], dict[str, Any]]) -> str:
    """Return the MIG strategy of the agent's device plugin, "" if it offers nothing."""
    tasks = status().get("tasks", ())
    details = (task["detail"] for task in tasks if task["name"] == "device-plugin")
    return next((entry["mig_strategy"] for detail in details for entry in detail
                 if "mig_strategy" in entry), "")  # fmt: skip
