# SPDX-License-Identifier: Apache-2.0
"""Program `gpu-kubelet-plugin`: the agent's task alone, with the options of NVIDIA's program."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.dra.settings import Settings
    from nvct.agent.dra.task import DraDriver
    from nvct.agent.kubernetes.cluster import Cluster
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient

PROGRAM = "gpu-kubelet-plugin"
INCUMBENT = "25.12.0"
"""The version of NVIDIA's program whose options this one takes."""


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.dra import options

    program.main(
        program.Program(
            name=PROGRAM,
            title="NVIDIA DRA Driver for GPUs",
            version=INCUMBENT,
            help_text=options.help_text,
            check=options.resolve,
            make=make,
        )
    )


def make(
    words: Sequence[str], env: Mapping[str, str], client: NvmlClient, journal: Log
) -> DraDriver:
    """Return the task, with the settings of a command line and environment.

    Raises:
        UsageError, DocumentError: a setting is wrong.
    """
    from nvct.agent.discovery import of_this_machine
    from nvct.agent.dra import options
    from nvct.agent.dra.task import DraDriver
    from nvct.agent.driver_root import DEV_ROOT_ENV
    from nvct.agent.health import settings as health_settings
    from nvct.agent.health import shared
    from nvct.agent.instance import FOLDER
    from nvct.agent.kubernetes import cluster  # lightkube, 12 MB
    from nvct.agent.resources_mode import of_client
    from nvct.agent.variables import SOCKET_ENV

    def load() -> Settings:
        return journal.warned(options.resolve(words, env))

    settings = load()
    folder = os.path.dirname(env.get(SOCKET_ENV, "")) or FOLDER
    health = shared.engine(client, health_settings.from_environment(env), journal, folder)
    dev_root = env.get(DEV_ROOT_ENV, "")
    discovery = of_this_machine(client, settings.container_driver_root, "auto", dev_root)

    def connect() -> Cluster:
        return cluster.connect(settings.kubeconfig, env)

    return DraDriver(
        settings, discovery, connect, health, journal, load=load, mode=of_client(client)
    )


if __name__ == "__main__":
    main()
