# SPDX-License-Identifier: Apache-2.0
"""A task of the agent as a program of its own: the version, --help, signals, error messages.

The agent's own variables are here too; docs/agent.md explains them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Mapping, Sequence
from typing import NoReturn

from nvct.agent.task_table import PROGRAMS, Entry
from nvct.errors import NvctError, NvmlError, UsageError, line, unexpected
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.core.context import Context
    from nvct.agent.core.settings import Program
    from nvct.agent.core.task import Task
    from nvct.agent.nvml.client import NvmlClient
    from nvct.host.nvml.process import WorkerProcess


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)  # Signals that end a program
ASKED_S = 0.005  # Time for sending the first request to NVML
GARBAGE = 10_000
"""New objects between two garbage collections; with Python's 700 a start takes 5 % longer."""


def main() -> NoReturn:
    """Run the program that this process was started as."""
    gc.set_threshold(GARBAGE)
    name, words = _called(sys.argv)
    entry = PROGRAMS[name]
    early = EarlySignals()
    program: Program = entry.module("settings").PROGRAM
    if words in (["--version"], ["-version"], ["-v"]):
        sys.stdout.write(f"{program.title} version v{program.version}\nnvct: {__version__}\n")
        sys.exit(0)
    try:
        if any(word.lstrip("-") in ("help", "h") for word in words if word.startswith("-")):
            from nvct.agent.core import logs

            sys.stdout.write(program.help_text() + logs.help_text())
            sys.exit(0)
        if len(words) == 1 and words[0] in program.commands:
            name = f"{name} {words[0]}"
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
            program.commands[words[0]]()
            sys.exit(0)
        from nvct.agent.nvml import supervisor as nvml_supervisor

        # It forks: before anything starts a thread, and while this process is small.
        supervisor = nvml_supervisor.start()
        run(entry, words, os.environ, supervisor, early)
    except NvctError as error:
        sys.stderr.write(f"{line(name, error)}\n")
        sys.exit(1)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{line(name, unexpected(error))}\n")
        sys.exit(1)
    sys.exit(0)


def _called(argv: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the program's name, which is argv[0] or the first word, and the words after it."""
    name, words = os.path.basename(argv[0]), argv[1:]
    if name not in PROGRAMS and words:
        name, words = words[0], words[1:]
    if name not in PROGRAMS:
        sys.exit(f"the agent has no program {name}, but has: {', '.join(PROGRAMS)}")
    return name, words


def block() -> None:
    """Block signals until the program that this process execs handles them.

    PID 1 of a container would lose them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, signal.SIGHUP))


def unblock() -> None:
    """Receive the signals that `block` blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*ENDING, signal.SIGHUP))


class EarlySignals:
    """Handles signals until the program has loaded its modules, which takes a tenth of a second.

    Otherwise PID 1 of a container ignores SIGTERM in that time, and SIGHUP ends any other process.
    """

    def __init__(self) -> None:
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
    entry: Entry,
    words: Sequence[str],
    env: Mapping[str, str],
    supervisor: WorkerProcess,
    early: EarlySignals,
) -> None:
    """Run until a signal ends the program, or it has nothing more to do.

    NvctError if the settings are wrong, or the program needs a driver and there is none.
    """
    from nvct.agent.core import logs

    words, log_settings = logs.from_command_line(words)
    journal = logs.from_environment({**env, **log_settings})
    # Before the slow imports, so that an error comes at once.
    settings, _ = entry.module("settings").resolve(words, env)
    import asyncio

    from nvct.agent.core.context import Context
    from nvct.agent.nvml.client import NvmlClient

    journal.info(f"Starting {entry.program} {__version__}")
    client = NvmlClient(supervisor.connection)
    context = Context(env=env, client=client, journal=journal, words=words)
    asyncio.run(_serve(entry, context, settings, early))


async def _serve(entry: Entry, context: Context, settings: object, early: EarlySignals) -> None:
    import asyncio

    from nvct.agent.nvml.client import SupervisorEndedError

    _ = await begin_nvml(context.client, settings)
    work: Task = entry.module("task").make(context)
    task = asyncio.ensure_future(work.run())
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, work.reload.set)
    for number in ENDING:
        loop.add_signal_handler(number, task.cancel)
    if early.wants_reload:
        work.reload.set()
    try:
        await task
    except asyncio.CancelledError:
        context.journal.info("Received a signal, shutting down.")
    except SupervisorEndedError as error:
        raise NvmlError(str(error)) from error
    finally:
        context.client.disconnect()


async def begin_nvml(client: NvmlClient, settings: object) -> Awaitable[object]:
    """Start NVML while the caller imports modules; return an awaitable for its first report.

    Awaiting it is optional: a task that asks for a report meanwhile gets the same one.
    """
    import asyncio

    from nvct.agent.nvml.client import SupervisorEndedError

    async def report() -> None:
        with contextlib.suppress(NvctError, SupervisorEndedError):  # a task reports it
            if client.chooses_library:
                client.library = _library(settings)
            if not client.chooses_library or client.library:
                await client.report()

    asking = asyncio.ensure_future(report())
    await asyncio.wait([asking], timeout=ASKED_S)
    return asking


def _library(settings: object) -> str:
    """Return the path of NVML for a program's settings, "" if the program does not use NVML.

    DriverNotFoundError if the library is missing; UsageError if the driver root is not absolute.
    """
    from nvct.host import modes
    from nvct.host.nvml.library import nvml_library
    from nvct.host.roots import Roots

    root: str = getattr(settings, "container_driver_root", "")
    roots = Roots(driver_root=root if os.path.isdir(root) else "/")
    return nvml_library(roots) if root and modes.mode_and_reason(roots)[0] == "nvml" else ""


if __name__ == "__main__":
    main()


TASKS_ENV = "NVCT_AGENT_TASKS"
LISTEN_ENV = "NVCT_AGENT_LISTEN"
WORKER_ENV = "NVCT_AGENT_WORKER"
"""The socket of `nvct agent worker`, for the worker and for the agent."""
RELEASE_ENV = "NVCT_RELEASE"
"""The same text for an agent and a worker of one release, if these are separate pods."""
UPGRADES_ENV = "NVCT_DRIVER_UPGRADES"
"""true beside NVIDIA's driver container: the pod selects the label nvidia.com/gpu.deploy.client,
which NVIDIA's driver manager pauses, and the agent always watches the Node."""
GRACE_ENV = "NVCT_AGENT_GRACE_S"
"""How long the pod may take to end (terminationGracePeriodSeconds)."""
GRACE_S = 30  # Kubernetes's default


def grace_s(env: Mapping[str, str]) -> int:
    """Return how many seconds this pod may take to end; UsageError if that is not a number."""
    text = env.get(GRACE_ENV, "") or str(GRACE_S)
    if not text.isdecimal() or not text.isascii():
        raise UsageError(f"{GRACE_ENV}={text!r} is not a number of seconds", hint="such as 30")
    return int(text)
