# SPDX-License-Identifier: Apache-2.0
"""`nvct agent`: the tasks of this node in one process, and its /status.

Each task is also a program of its own, under the name of NVIDIA's; here it takes its options from
that program's environment variables and config file. On a node without a GPU the agent sleeps:
it does not even load gRPC.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field

from nvct.agent import logs
from nvct.agent.instance import FOLDER, Instance
from nvct.agent.nvml_client import NvmlClient
from nvct.agent.status import Status
from nvct.agent.tasks import Task
from nvct.errors import UsageError
from nvct.host.presence import has_gpu
from nvct.installer import ready
from nvct.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nvct.agent.device_plugin.task import DevicePlugin
    from nvct.agent.exposition import Family
    from nvct.agent.logs import Log
    from nvct.host.nvml.process import WorkerProcess

DEVICE_PLUGIN = "device-plugin"
TASKS = (DEVICE_PLUGIN,)
DRIVER_READY_ENV = "NVCT_DRIVER_READY_FILE"
HARDWARE_S = 5.0
"""How often a node without a GPU is looked at."""


@dataclass
class Agent:
    """An agent that is to run on this node.

    Attributes:
        names: of its tasks.
        env: the environment, which has the tasks' settings.
        client: of NVML.
        journal: its log.
        has_gpu: whether this node has a GPU.
        plugin: the device plugin while it runs.
    """

    names: Sequence[str]
    env: Mapping[str, str]
    client: NvmlClient
    journal: Log
    has_gpu: Callable[[], bool]
    plugin: DevicePlugin | None = None
    tasks: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the tasks; none is started."""
        made = {
            DEVICE_PLUGIN: Task(
                DEVICE_PLUGIN, self._device_plugin, self._describe, self._plugin_metrics
            )
        }
        self.tasks = [made[name] for name in self.names]

    def reload(self) -> None:
        """Have the tasks read their settings again."""
        if self.plugin is not None:
            self.plugin.reload.set()

    async def serve(self, instance: Instance, stopped: asyncio.Event) -> None:
        """Take this node over, and serve until it is stopped.

        Raises:
            HostError: another agent does not yield.
        """
        await instance.take()
        yielded = asyncio.Event()
        status = Status(self.tasks, yielded.set)
        await status.start(instance.socket)
        runs = [asyncio.create_task(self._run())]
        ends = [asyncio.create_task(event.wait()) for event in (stopped, yielded)]
        try:
            done, _ = await asyncio.wait([*runs, *ends], return_when=asyncio.FIRST_COMPLETED)
            for task in {*done} & {*runs}:
                task.result()
        finally:
            for task in (*runs, *ends):
                task.cancel()
            await asyncio.gather(*runs, *ends, return_exceptions=True)
            await status.close()
            instance.release()
        if not stopped.is_set():
            self.journal.info("another agent serves this node now; this one does nothing more")
            await stopped.wait()

    async def _run(self) -> None:
        if not self.has_gpu():
            self.journal.info("this node has no NVIDIA GPU; waiting for one")
        while not self.has_gpu():  # noqa: ASYNC110 - nothing tells of new hardware
            await asyncio.sleep(HARDWARE_S)
        await asyncio.gather(*(task.keep(self.journal) for task in self.tasks))

    async def _device_plugin(self) -> None:
        from nvct.agent.device_plugin import main

        env = with_driver_roots(self.env)
        self.plugin = main.make((), env, self.client, self.journal)
        await self.plugin.run()

    def _describe(self) -> object:
        return self.plugin.describe() if self.plugin else None

    def _plugin_metrics(self) -> Iterable[Family]:
        return self.plugin.metrics() if self.plugin else ()


def run(
    names: Sequence[str],
    env: Mapping[str, str],
    supervisor: WorkerProcess,
    folder: str = FOLDER,
) -> None:
    """Serve until a signal ends the agent.

    Raises:
        UsageError: a task is unknown, or a setting of the log is wrong.
        HostError: another agent does not yield.
    """
    for name in names:
        if name not in TASKS:
            raise UsageError(f"task {name!r} is unknown", hint=f"there are: {', '.join(TASKS)}")
    journal = logs.from_environment(env)
    asyncio.run(_serve(names, env, folder, supervisor, journal))


async def _serve(
    names: Sequence[str],
    env: Mapping[str, str],
    folder: str,
    supervisor: WorkerProcess,
    journal: Log,
) -> None:
    journal.info(f"Starting nvct agent {__version__} with {', '.join(names)}")
    client = NvmlClient(supervisor.connection)
    agent = Agent(names, env, client, journal, has_gpu)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        loop.add_signal_handler(number, stopped.set)
    try:
        await agent.serve(Instance(folder), stopped)
    finally:
        client.disconnect()
    journal.info("Received a signal, shutting down.")


def with_driver_roots(env: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with the driver's roots that `nvct install` has found, if it has.

    Raises:
        HostError: its file cannot be read.
    """
    path = env.get(DRIVER_READY_ENV, "")
    return {**env, **ready.read(path)} if os.path.exists(path) else env
