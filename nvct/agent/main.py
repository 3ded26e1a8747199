# SPDX-License-Identifier: Apache-2.0
"""`nvct agent`: the tasks of this node in one process, and its /status.

Most tasks are also programs of their own, under the names of NVIDIA's programs; in the agent, a
task takes its options from that program's environment variables and config file. On a node without
a GPU the agent only looks for one, and does not even load gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nvct.agent import task_table
from nvct.agent.core import logs, status
from nvct.agent.core.context import SOCKET_ENV, Context, Shared, node_name
from nvct.agent.core.instance import (
    FOLDER,
    HAND_OVER,
    MARGIN_S,
    POD_ENV,
    YIELD,
    Instance,
    successor_is_coming,
)
from nvct.agent.core.logs import Log, Problem
from nvct.agent.core.program import (
    ENDING,
    GRACE_S,
    LISTEN_ENV,
    RELEASE_ENV,
    UPGRADES_ENV,
    begin_nvml,
    grace_s,
)
from nvct.agent.core.resources_mode import DEFAULT_ENV, DRA, ResourcesMode
from nvct.agent.core.status import Status
from nvct.agent.core.task import KeptTask, Task
from nvct.agent.core.waiting import together, unless, within
from nvct.agent.kubernetes import node_news
from nvct.agent.machine.driver_root import with_driver_roots
from nvct.agent.nvml.client import NvmlClient, SupervisorEndedError
from nvct.agent.nvml.release import Release
from nvct.agent.task_table import CONFIG_MANAGER, NOT_BOTH, OFFERING, TASKS
from nvct.agent.web import http
from nvct.errors import HostError, NvctError, NvmlError, UsageError
from nvct.host.modes import has_gpu
from nvct.host.recorder import Recorder
from nvct.oci.jsontext import Json
from nvct.version import __version__

READY, STOPPING = "READY=1", "STOPPING=1"
NOTIFY_ENV = "NOTIFY_SOCKET"
HTTP, UPGRADES = "http", "driver-upgrades"
CLOSE_S = 5.0
"""How long NVML's worker may take to close its handles before this instance stands by."""
WORKER_S = 1.0  # Between two looks for the worker of this agent's release
NVML_S = 30.0  # How long to wait for NVML before asking an older instance to yield
HARDWARE_S = 5.0  # Between two looks for a GPU on a node without one
SOON_S, LOOK_S = 5.0, 0.05
"""How long a starting task waits, and between two looks. It waits for config-manager's file, and
for the tasks that offer devices, because its imports would delay their first list."""


@dataclass()
class Agent:
    """The agent of this node: its tasks, its HTTP server and its status."""

    names: Sequence[str]
    env: Mapping[str, str]
    client: NvmlClient
    journal: Log
    has_gpu: Callable[[], bool]
    # host and port of the HTTP server for everybody, None for no server
    listen: tuple[str, int] | None = None
    # the tasks that run now, by name
    running: dict[str, Task] = field(default_factory=dict)
    tasks: list[KeptTask] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    grace_s: int = GRACE_S
    release: Release = field(init=False)
    is_ending: bool = False

    def __post_init__(self) -> None:
        self.tasks = [
            KeptTask(name, partial(self._run_task, name), partial(self.running.get, name))
            for name in self.names
        ]
        self.http = KeptTask(HTTP, self._listen)
        if self.env.get(UPGRADES_ENV) == "true":
            self.tasks.append(KeptTask(UPGRADES, self._follow_node))
        served = [*self.tasks, *([self.http] if self.listen else [])]
        client = self.client
        self.status = Status(
            served, lambda: client.problem, health=self._health,
            refusal=lambda: (client.refusal, client.is_let_go),
        )  # fmt: skip

    def reload(self) -> None:
        """Make the tasks read their settings again."""
        for work in self.running.values():
            work.reload.set()

    async def serve(self, instance: Instance, stopped: asyncio.Event) -> None:
        """Serve this node until stopped; stand by while another agent serves it.

        HostError if the other agent does not yield.
        """
        port = asyncio.create_task(self.http.keep(self.journal)) if self.listen else None
        try:
            await unless(stopped, self._meet_worker())
            self.release = Release(self.client, self.journal, os.path.dirname(instance.socket))
            await self.release.look()
            if self.has_gpu():
                await unless(stopped, self._warm_up())
            await unless(stopped, instance.take())
            while not stopped.is_set():
                await self._serve_node(instance, stopped)
                if stopped.is_set() or self.is_ending:
                    if self.shared.handing:
                        await unless(stopped, together(*self.shared.handing))
                    break
                self.status.part = "standby"
                self.journal.info("another process has the node's lock now; this agent stands by")
                await unless(stopped, self._stand_by(instance, stopped))
        finally:
            instance.release()
            if port is not None:
                port.cancel()
                await asyncio.gather(port, return_exceptions=True)

    async def _meet_worker(self) -> None:
        """Wait for the worker of this agent's release, which starts after the installer has ended.

        The tasks read the installer's results only once, when they start.
        """
        release, said = self.env.get(RELEASE_ENV, ""), ""
        while release and (reason := await self.client.why_apart(release)):
            if reason != said:
                self.journal.info(reason)
                said = reason
            await asyncio.sleep(WORKER_S)

    async def _warm_up(self) -> None:
        """Do the slow steps before an older instance yields, so that the pause is short.

        NVML in the worker's container can take twenty seconds to start on a machine with 8 GPUs.
        """
        first = [name for name in self.names if name in OFFERING]
        settings = None
        with contextlib.suppress(NvctError):  # the task reports it
            for name in first:
                settings, _ = (
                    TASKS[name].module("settings").resolve((), with_driver_roots(self.env))
                )
        asking = await begin_nvml(self.client, settings)
        task_table.load(first)
        if not self.client.chooses_library:
            with contextlib.suppress(asyncio.TimeoutError):
                await within(NVML_S, asking)

    async def end(self, stopped: asyncio.Event) -> None:
        """End; if a newer pod is starting, first serve until it takes over or time is short."""
        is_second_signal, self.is_ending = self.is_ending, True
        serves = self.status.part == "serving" and not is_second_signal
        try:
            if serves and await successor_is_coming(self.env, os.uname().nodename):
                self.journal.info(
                    "a newer pod starts: this agent serves until the new one takes over"
                )
                await asyncio.sleep(self.grace_s - MARGIN_S)
        finally:
            stopped.set()

    async def _stand_by(self, instance: Instance, stopped: asyncio.Event) -> None:
        """Wait for the lock; end if `nvct agent --leave` has removed it."""
        if not await instance.stand_by(in_pod=POD_ENV in self.env):
            self.journal.info("nvct has left this node: this agent ends")
            stopped.set()

    async def _serve_node(self, instance: Instance, stopped: asyncio.Event) -> None:
        """Serve until stopped, or until another instance asks for the lock."""
        self.status.part = "serving"
        yielded = asyncio.Event()
        self.shared.has_successor = False

        def hand_over() -> None:
            self.shared.has_successor = True
            yielded.set()

        ends = {YIELD: yielded.set, HAND_OVER: hand_over}
        server = status.with_yield(self.status, ends)
        await server.listen_unix(instance.socket)
        notify(self.env, READY)
        self.env = {**self.env, SOCKET_ENV: instance.socket}
        runs = asyncio.create_task(unless(yielded, self._run()))
        try:
            await unless(stopped, runs)
        finally:
            await server.close()
            instance.release()
        if not stopped.is_set():
            with contextlib.suppress(NvmlError, asyncio.TimeoutError):  # it may hang
                await within(CLOSE_S, self.client.close())

    async def _run(self) -> None:
        # The Node is read by a task that obeys one of its labels, else by `_follow_node`.
        stop_listening = node_news.listen(node_name(self.env), self.release.see)
        try:
            await together(self.release.follow(), self._run_tasks())
        finally:
            stop_listening()

    async def _follow_node(self) -> None:
        """Watch the Node, whose labels say when its driver is being replaced."""
        from nvct.agent.kubernetes import cluster, node_watch  # lightkube, 12 MB

        connected = cluster.connect(self.env.get("KUBECONFIG", ""), self.env)
        complain = Problem(self.journal.warning).tell
        try:
            await node_watch.follow(connected, node_name(self.env), lambda _: None, complain)
        finally:
            await connected.close()

    async def _run_tasks(self) -> None:
        if not self.has_gpu():
            self.status.part = "waiting"
            self.journal.info("this node has no NVIDIA GPU; waiting for one")
            while not self.has_gpu():  # noqa: ASYNC110 - nothing reports new hardware
                await asyncio.sleep(HARDWARE_S)
            self.status.part = "serving"
        await together(*(task.keep(self.journal) for task in self.tasks))

    async def _listen(self) -> None:
        host, port = self.listen or ("", 0)
        server = http.Server(self.status.open_answer)
        try:
            port = await server.listen(host, port)
        except OSError as error:
            # The resolver's errors have numbers below 0, and no text in strerror(3).
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror
            raise HostError(f"cannot listen on {host}:{port}: {reason}") from error
        self.journal.info(f"listening on http://{host or '*'}:{port}")
        try:
            await asyncio.Event().wait()
        finally:
            await server.close()

    async def _run_task(self, name: str) -> None:
        if name != CONFIG_MANAGER:
            await _soon(self._has_config)
        if name not in OFFERING and self._has_config():
            await _soon(self._has_offered)
        work = self.running[name] = TASKS[name].module("task").make(
            Context(
                env=with_driver_roots(self.env), client=self.client, journal=self.journal,
                in_agent=True, status=self.status.document, shared=self.shared,
            )
        )  # fmt: skip
        try:
            await work.run()
        finally:
            self.running.pop(name, None)

    def _has_config(self) -> bool:
        """Return whether config-manager has written its file; True if it writes none."""
        path = self.env.get("CONFIG_FILE", "") if CONFIG_MANAGER in self.names else ""
        return not path or os.path.exists(path)

    def _has_offered(self) -> bool:
        """Return whether the tasks that offer devices have settled, so that others can start."""
        offering = [name for name in self.names if name in OFFERING]
        return all(name in self.running and self.running[name].is_settled for name in offering)

    def _health(self) -> dict[str, Json] | None:
        return self.shared.health.describe() if self.shared.health and self.running else None


def run(
    names: Sequence[str], env: Mapping[str, str], client: NvmlClient, folder: str = FOLDER
) -> None:
    """Serve until a signal ends the agent.

    UsageError if a task is unknown, or a setting is wrong; HostError if another agent does not
    yield.
    """
    for name in names:
        if name not in TASKS:
            raise UsageError(f"task {name!r} is unknown", hint=f"tasks are: {', '.join(TASKS)}")
    has_both = set(OFFERING) <= set(names)
    mode = ResourcesMode(env.get(DEFAULT_ENV) or DRA) if has_both else None
    if set(NOT_BOTH) <= set(names):
        raise UsageError(
            f"tasks {' and '.join(NOT_BOTH)} both change MIG devices",
            hint="choose one for a node: --tasks",
        )
    journal = logs.from_environment(env)
    listen = env.get(LISTEN_ENV, "")
    address = http.address(listen) if listen else None
    instance = Instance(folder)
    journal = replace(journal, recorder=Recorder(folder))
    agent = Agent(names, env, client, journal, has_gpu, address, grace_s=grace_s(env))
    agent.shared.mode = mode
    asyncio.run(_serve(agent, instance))


async def _soon(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, SOON_S at most; if it does not, the task itself reports it."""
    until = time.monotonic() + SOON_S
    while not is_so() and time.monotonic() < until:  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(LOOK_S)


async def _serve(agent: Agent, instance: Instance) -> None:
    agent.journal.info(f"Starting nvct agent {__version__} with {', '.join(agent.names)}")
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    ends: set[asyncio.Task[None]] = set()
    for number in ENDING:
        loop.add_signal_handler(number, lambda: ends.add(asyncio.create_task(agent.end(stopped))))
    try:
        await agent.serve(instance, stopped)
        notify(agent.env, STOPPING)
    except SupervisorEndedError as error:
        raise NvmlError(str(error)) from error
    finally:
        agent.client.disconnect()
    if agent.is_ending:
        agent.journal.info("Received a signal, shutting down.")


def notify(env: Mapping[str, str], state: str) -> None:
    """Send a state to systemd as sd_notify(3) does; do nothing if `env` names no socket."""
    path = env.get(NOTIFY_ENV, "")
    if path[:1] not in ("/", "@"):
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with (
        contextlib.suppress(OSError),  # the service manager is gone
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier,
    ):
        notifier.sendto(state.encode(), address)
