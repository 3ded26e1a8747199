# SPDX-License-Identifier: Apache-2.0
"""Program `nvidia-device-plugin`: the agent's task alone, with the options of NVIDIA's program."""

from __future__ import annotations

import os
import sys

from nvct.errors import HostError, NvctError, line
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.device_plugin.settings import Settings
    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.discovery import Discovery
    from nvct.agent.logs import Log
    from nvct.agent.nvml_client import NvmlClient
    from nvct.host.model import Mode
    from nvct.host.nvml.process import WorkerProcess

PROGRAM = "nvidia-device-plugin"
INCUMBENT = "0.20.0"
"""The version of NVIDIA's program whose options this one takes."""
PROC, SYS = "/proc", "/sys"
MODES: dict[str, Mode] = {"nvml": "nvml", "tegra": "csv"}
"""By --device-discovery-strategy; auto is the machine's own."""


def main() -> NoReturn:
    """Run the program."""
    words = sys.argv[1:]
    if words in (["--version"], ["-version"], ["-v"]):
        sys.stdout.write(f"NVIDIA Device Plugin version v{INCUMBENT}\nnvct: {__version__}\n")
        sys.exit(0)
    try:
        if any(word.lstrip("-") in ("help", "h") for word in words if word.startswith("-")):
            from nvct.agent.device_plugin import options

            sys.stdout.write(options.help_text())
            sys.exit(0)
        from nvct.agent import nvml_supervisor

        # Before anything that starts a thread; and while this process is small.
        supervisor = nvml_supervisor.start()
        run(words, os.environ, supervisor)
    except NvctError as error:
        sys.stderr.write(f"{line(PROGRAM, error)}\n")
        sys.exit(1)
    except ModuleNotFoundError as error:
        lacking = HostError(f"no module {error.name}", hint="pip install 'nvct[agent]'")
        sys.stderr.write(f"{line(PROGRAM, lacking)}\n")
        sys.exit(1)
    sys.exit(0)


def run(words: Sequence[str], env: Mapping[str, str], supervisor: WorkerProcess) -> None:
    """Serve until a signal ends the program.

    Raises:
        NvctError: the settings are wrong, or the machine has no driver and must have one.
    """
    from nvct.agent import logs
    from nvct.agent.device_plugin import config_file

    journal = logs.from_environment(env)
    config_file.resolve(words, env)  # before gRPC is loaded, which takes longer
    import asyncio

    asyncio.run(_serve(words, env, supervisor, journal))


def make(
    words: Sequence[str], env: Mapping[str, str], client: NvmlClient, journal: Log
) -> DevicePlugin:
    """Return the task, with the settings of a command line and environment.

    Raises:
        UsageError, DocumentError: a setting is wrong.
    """
    from nvct.agent.device_plugin import config_file, health
    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.discovery import Discovery
    from nvct.host.roots import Roots

    def load() -> Settings:
        settings, warnings = config_file.resolve(words, env)
        for warning in warnings:
            journal.warning(warning)
        return settings

    def discovery(settings: Settings) -> Discovery:
        root = settings.container_driver_root
        roots = Roots(driver_root=root if os.path.isdir(root) else "/", proc=PROC, sys=SYS)
        mode = MODES.get(settings.device_discovery_strategy)
        return Discovery(roots, client, mode=mode)

    checks = health.checks(env)
    for word in checks.malformed:
        journal.warning(f"{word!r} is no XID: it has no effect")
    return DevicePlugin(load, discovery, checks, journal)


async def _serve(
    words: Sequence[str], env: Mapping[str, str], supervisor: WorkerProcess, journal: Log
) -> None:
    import asyncio
    import signal

    from nvct.agent.nvml_client import NvmlClient

    journal.info(f"Starting {PROGRAM} {__version__}")
    client = NvmlClient(supervisor.connection)
    plugin = make(words, env, client, journal)
    task = asyncio.create_task(plugin.run())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, plugin.reload.set)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        journal.info("Received a signal, shutting down.")
    finally:
        client.disconnect()


if __name__ == "__main__":
    main()
