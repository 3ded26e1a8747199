# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-mig-manager`: the agent's task alone, with the options of NVIDIA's program."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.logs import Log
    from nvct.agent.mig_manager.task import MigManager
    from nvct.agent.nvml.client import NvmlClient
    from nvct.agent.tasks import Document
    from nvct.mig.apply import Machine

PROGRAM = "nvidia-mig-manager"
INCUMBENT = "0.15.0"
"""The version of NVIDIA's program whose options this one takes."""


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.mig_manager import options

    program.main(
        program.Program(
            name=PROGRAM,
            title="NVIDIA MIG Manager",
            version=INCUMBENT,
            help_text=options.help_text,
            check=options.resolve,
            make=make,
        )
    )


def make_in_agent(
    env: Mapping[str, str], client: NvmlClient, journal: Log, status: Document
) -> MigManager:
    """Return the task; CONFIG_FILE is that of the device plugin here.

    Args:
        env: the agent's environment.
        client: asks NVML.
        journal: the agent's log.
        status: returns what the agent's /status shows.

    Raises:
        UsageError, ClusterError: as `make`.
    """
    own = {name: value for name, value in env.items() if name != "CONFIG_FILE"}
    return make((), own, client, journal, partial(_strategy, status))


def _strategy(status: Document) -> str:
    """Return the MIG strategy of the agent's device plugin, "" if it offers nothing."""
    details = (task["detail"] for task in status()["tasks"] if task["name"] == "device-plugin")
    return next((entry["mig_strategy"] for detail in details for entry in detail
                 if "mig_strategy" in entry), "")  # fmt: skip


def make(
    words: Sequence[str],
    env: Mapping[str, str],
    client: NvmlClient,
    journal: Log,
    strategy: Callable[[], str] = lambda: "",
) -> MigManager:
    """Return the task; the last argument is that of `Work`.

    Raises:
        UsageError: a setting is wrong, or cannot be honored with NVML in another container.
        ClusterError: there is no access to the cluster.
    """
    from nvct.agent.health import shared
    from nvct.agent.instance import FOLDER
    from nvct.agent.kubernetes import cluster
    from nvct.agent.mig_manager import options
    from nvct.agent.mig_manager.host_services import HostServices
    from nvct.agent.mig_manager.pods import Pods
    from nvct.agent.mig_manager.session import AgentSession
    from nvct.agent.mig_manager.task import MigManager
    from nvct.agent.mig_manager.work import Work
    from nvct.agent.nvml import mig_verbs
    from nvct.errors import UsageError

    settings = options.resolve(words, env)
    settings = replace(settings, node_name=settings.node_name or os.uname().nodename)
    if not client.chooses_library and (settings.reboots or settings.stops_clients):
        raise UsageError(
            "with NVML in another container, the host is not rebooted, nor its services stopped",
            hint="run nvidia-mig-manager in a container of its own, or the agent without --worker",
        )
    machine = _machine(client, settings.driver_root, FOLDER)
    assert isinstance(machine.session, AgentSession)  # noqa: S101 - for the type checker
    connected = cluster.connect(settings.kubeconfig, env)
    return MigManager(
        settings,
        cluster=connected,
        work=Work(
            machine=machine,
            config_file=settings.config_file,
            state_file=f"{settings.host_root}{settings.state_file}",
            make_nodes=partial(mig_verbs.make_nodes, machine.roots)
            if client.chooses_library
            else machine.session.make_nodes,
            strategy=strategy,
        ),
        session=machine.session,
        services=HostServices(settings.host_root, settings.clients_file, FOLDER),
        pods=Pods(client, connected),
        log=journal,
        health=partial(shared.existing, client),
    )


def _machine(client: NvmlClient, driver_root: str, folder: str) -> Machine:
    from nvct.agent.driver_root import ROOT_ENV, machine_roots
    from nvct.agent.mig_manager.session import AgentSession
    from nvct.mig import pause
    from nvct.mig.apply import Machine
    from nvct.mig.journal import Journal

    roots = machine_roots({ROOT_ENV: driver_root})
    session = AgentSession(client, roots)
    return Machine(
        session=session,
        roots=roots,
        journal=Journal(folder),
        reset=session.reset,
        pause=partial(pause.announce, folder, wait_s=pause.PAUSE_S),
        find_holders=None if client.chooses_library else session.holders,
    )


if __name__ == "__main__":
    main()
