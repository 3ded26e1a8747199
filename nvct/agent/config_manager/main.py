# SPDX-License-Identifier: Apache-2.0
"""Program `config-manager`: the agent's task alone, with the options of NVIDIA's."""

from __future__ import annotations

import os
from dataclasses import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.config_manager.options import Settings
    from nvct.agent.config_manager.task import ConfigManager
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient

PROGRAM = "config-manager"
INCUMBENT = "0.20.0"
"""The version of NVIDIA's program whose options this one takes."""


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.config_manager import options

    program.main(
        program.Program(
            name=PROGRAM,
            title="NVIDIA Config Manager",
            version=INCUMBENT,
            help_text=options.help_text,
            check=options.resolve,
            make=make,
        )
    )


def make(
    words: Sequence[str], env: Mapping[str, str], _client: NvmlClient, journal: Log
) -> ConfigManager:
    """Return the task, which signals a program after a change.

    Raises:
        UsageError: a setting is wrong.
        ClusterError: there is no access to the cluster.
    """
    from nvct.agent.config_manager import options, processes

    settings = options.resolve(words, env)
    return _made(settings, env, lambda: processes.send(settings.process, settings.signal), journal)


def make_in_agent(env: Mapping[str, str], journal: Log) -> ConfigManager:
    """Return the task; after a change all tasks of this process read their settings again.

    Raises:
        UsageError, ClusterError: as `make`.
    """
    import signal

    from nvct.agent.config_manager import options

    settings = options.resolve((), env)
    if "CONFIG_FILE_DST" not in env and env.get("CONFIG_FILE"):
        settings = replace(settings, target=env["CONFIG_FILE"])

    def notify() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 1

    return _made(settings, env, notify, journal)


def _made(
    settings: Settings, env: Mapping[str, str], notify: Callable[[], int], journal: Log
) -> ConfigManager:
    from nvct.agent.config_manager.task import ConfigManager
    from nvct.agent.kubernetes import cluster

    known = replace(settings, node_name=settings.node_name or os.uname().nodename)
    return ConfigManager(known, cluster.connect(settings.kubeconfig, env), notify, journal)


if __name__ == "__main__":
    main()
