# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-device-plugin`: the agent's task alone, with the options of NVIDIA's program."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.device_plugin.settings import Settings
    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.discovery import Discovery
    from nvct.agent.logs import Log
    from nvct.agent.nvml_client import NvmlClient

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
    words: Sequence[str], env: Mapping[str, str], client: NvmlClient, journal: Log
) -> DevicePlugin:
    """Return the task, with the settings of a command line and environment.

    Raises:
        UsageError, DocumentError: a setting is wrong.
    """
    from nvct.agent.device_plugin import config_file, health
    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.discovery import of_this_machine

    def load() -> Settings:
        settings, warnings = config_file.resolve(words, env)
        for warning in warnings:
            journal.warning(warning)
        return settings

    def discovery(settings: Settings) -> Discovery:
        return of_this_machine(
            client, settings.container_driver_root, settings.device_discovery_strategy
        )

    checks = health.checks(env)
    for word in checks.malformed:
        journal.warning(f"{word!r} is no XID: it has no effect")
    return DevicePlugin(load, discovery, checks, journal)


if __name__ == "__main__":
    main()
