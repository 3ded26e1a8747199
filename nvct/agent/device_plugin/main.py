# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-device-plugin`: the agent's task alone, with the options of NVIDIA's program."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.device_plugin.list_strategy import Engine
    from nvct.agent.device_plugin.settings import Settings
    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.discovery import Discovery
    from nvct.agent.health.engine import HealthEngine
    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient

PROGRAM = "nvidia-device-plugin"
INCUMBENT = "0.20.0"
"""The version of NVIDIA's program whose options this one takes."""


def main() -> NoReturn:
    """Run the program."""
    from nvct.agent import program
    from nvct.agent.device_plugin import config_file, options

    program.main(
        program.Program(
            name=PROGRAM,
            title="NVIDIA Device Plugin",
            version=INCUMBENT,
            help_text=options.help_text,
            check=config_file.resolve,
            make=make,
        )
    )


def make(
    words: Sequence[str],
    env: Mapping[str, str],
    client: NvmlClient,
    journal: Log,
    *,
    in_agent: bool = False,
) -> DevicePlugin:
    """Return the task, with the settings of a command line and environment.

    The agent also starts the control daemons of MPS; beside the program, mps-control-daemon does.

    Raises:
        UsageError, DocumentError: a setting is wrong.
    """
    from nvct.agent import resources_mode
    from nvct.agent.device_plugin import config_file
    from nvct.agent.device_plugin.settings import SPEC_FOLDER
    from nvct.agent.device_plugin.spec_files import PluginFiles
    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.discovery import of_this_machine
    from nvct.agent.driver_root import DEV_ROOT_ENV
    from nvct.agent.health import shared
    from nvct.agent.health.settings import resolve
    from nvct.agent.instance import FOLDER
    from nvct.agent.variables import SOCKET_ENV
    from nvct.errors import NvmlError

    def load() -> Settings:
        return journal.warned(config_file.resolve(words, env))

    def discovery(settings: Settings) -> Discovery:
        return of_this_machine(
            client,
            settings.container_driver_root,
            settings.device_discovery_strategy,
            env.get(DEV_ROOT_ENV, ""),
        )

    def health(settings: Settings) -> HealthEngine:
        found = resolve(
            settings.health_recovery, settings.health_probation, settings.xid_table, env
        )
        folder = os.path.dirname(env.get(SOCKET_ENV, "")) or FOLDER
        return shared.engine(client, found, journal, folder)

    async def ask_engine(settings: Settings) -> Engine | str:
        from nvct.agent.device_plugin import engine_features  # not for every strategy
        from nvct.agent.nvml.engine_question import roots

        machine = discovery(settings)
        try:
            if (await machine.machine()).mode != "nvml":
                return "CDI is for machines with NVML"
            files = PluginFiles(SPEC_FOLDER, journal, tuple(roots(env)))
            reason = await files.why_not(settings, machine)
            return reason or engine_features.features(await client.engine())
        except NvmlError as error:
            return error.message

    return DevicePlugin(
        load, discovery, health, journal, starts_mps=in_agent, ask_engine=ask_engine,
        mode=resources_mode.of_client(client),
    )  # fmt: skip


if __name__ == "__main__":
    main()
