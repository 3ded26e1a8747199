# SPDX-License-Identifier: Apache-2.0
"""A task of the agent as a program of its own: the version, --help, signals, the last sentence."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

from nvct.errors import NvctError, line, unexpected
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

    from nvct.agent.logs import Log
    from nvct.agent.nvml.client import NvmlClient
    from nvct.agent.tasks import Runs
    from nvct.host.nvml.process import WorkerProcess


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""Signals that end a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program.

    Attributes:
        name: its name.
        title: the title that NVIDIA's program prints with its version.
        version: of NVIDIA's program whose options this one takes.
        help_text: returns the text of --help.
        check: raises an error if a setting is wrong, before slow modules are loaded.
        make: returns the task.
    """

    name: str
    title: str
    version: str
    help_text: Callable[[], str]
    check: Callable[[Sequence[str], Mapping[str, str]], object]
    make: Callable[[Sequence[str], Mapping[str, str], NvmlClient, Log], Runs]


def main(program: Program) -> NoReturn:
    """Run a program with the arguments of this process."""
    early = EarlySignals()
    words = sys.argv[1:]
    if words in (["--version"], ["-version"], ["-v"]):
        sys.stdout.write(f"{program.title} version v{program.version}\nnvct: {__version__}\n")
        sys.exit(0)
    try:
        if any(word.lstrip("-") in ("help", "h") for word in words if word.startswith("-")):
            from nvct.agent import logs

            sys.stdout.write(program.help_text() + logs.help_text())
            sys.exit(0)
        from nvct.agent.nvml import supervisor as nvml_supervisor

        # Before anything that starts a thread; and while this process is small.
        supervisor = nvml_supervisor.start()
        run(program, words, os.environ, supervisor, early)
    except NvctError as error:
        sys.stderr.write(f"{line(program.name, error)}\n")
        sys.exit(1)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{line(program.name, unexpected(error))}\n")
        sys.exit(1)
    sys.exit(0)


def block() -> None:
    """Keep signals for the program that this process becomes, until it handles them.

    Process 1 of a container would lose them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, signal.SIGHUP))


def unblock() -> None:
    """Receive the signals that `block` kept."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, signal.SIGHUP))


class EarlySignals:
    """Handles signals until the program has loaded its modules, which takes a tenth of a second.

    Otherwise process 1 of a container ignores SIGTERM in that time, and SIGHUP ends any other one.

    Attributes:
        wants_reload: whether SIGHUP was received.
    """

    def __init__(self) -> None:
        """Set the handlers."""
        self.wants_reload = False
        signal.signal(signal.SIGHUP, self._reload)
        for number in ENDING:
            signal.signal(number, self._end)
        unblock()

    def _reload(self, _number: int, _frame: object) -> None:
        self.wants_reload = True

    def _end(self, _number: int, _frame: object) -> None:
        os._exit(0)  # nothing is served yet


def run(
    program: Program,
    words: Sequence[str],
    env: Mapping[str, str],
    supervisor: WorkerProcess,
    early: EarlySignals,
) -> None:
    """Run until a signal ends the program, or it has nothing more to do.

    Raises:
        NvctError: the settings are wrong, or the machine has no driver and must have one.
    """
    from nvct.agent import logs

    words, log_settings = logs.from_command_line(words)
    journal = logs.from_environment({**env, **log_settings})
    program.check(words, env)
    import asyncio

    asyncio.run(_serve(program, words, env, supervisor, journal, early=early))


async def _serve(
    program: Program,
    words: Sequence[str],
    env: Mapping[str, str],
    supervisor: WorkerProcess,
    journal: Log,
    *,
    early: EarlySignals,
) -> None:
    import asyncio

    from nvct.agent.nvml.client import NvmlClient

    journal.info(f"Starting {program.name} {__version__}")
    client = NvmlClient(supervisor.connection)
    runs = program.make(words, env, client, journal)
    task = asyncio.ensure_future(runs.run())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, runs.reload.set)
    for number in ENDING:
        loop.add_signal_handler(number, task.cancel)
    if early.wants_reload:
        runs.reload.set()
    try:
        await task
    except asyncio.CancelledError:
        journal.info("Received a signal, shutting down.")
    finally:
        client.disconnect()
