# SPDX-License-Identifier: Apache-2.0
"""Gives this node's programs the config file that the Node's label names.

The file is checked and then copied, so a malformed one never replaces a good one, not even after a
restart. A changed label or ConfigMap takes effect at once, without a restart.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from nvct.agent.config_manager import settings
from nvct.agent.config_manager.settings import EMPTY, NAMED, SINGLE, Settings
from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.core.task import Task
from nvct.agent.core.waiting import tick, together, until_set
from nvct.agent.device_plugin import settings as device_plugin
from nvct.agent.kubernetes import node_watch
from nvct.agent.kubernetes.cluster import NODE, Cluster, Object
from nvct.errors import HostError, NvctError, OSErrorsAs
from nvct.host import procfs
from nvct.linux.files import write_atomic

WORDS = 5  # The first words of a command line can have the name: python -I -m MODULE NAME
DEFAULT_NAME = "default"  # The file of fallback strategy `named`
FILES_S = 1.0  # Between two looks at the folder of config files
MODE = 0o644


def make(context: Context) -> ConfigManager:
    """Return the task, which after a change signals the other tasks, or a program."""
    known = context.load(settings.resolve)
    target = context.env.get("CONFIG_FILE")
    if context.in_agent and target and "CONFIG_FILE_DST" not in context.env:
        known = replace(known, target=target)

    def notify() -> int:
        if not context.in_agent:
            return signal_processes(known.process, known.signal)
        os.kill(os.getpid(), signal.SIGHUP)
        return 1

    return ConfigManager(known, context.connect(known.kubeconfig), notify, context.journal)


class ConfigManager(Task):
    """The task that chooses this node's config file; `reload` makes it look at once.

    `notify`: notifies the programs of a change, and returns how many it has notified.
    """

    def __init__(
        self, settings: Settings, cluster: Cluster, notify: Callable[[], int], log: Log
    ) -> None:
        super().__init__(log, problems_are_errors=True)
        # name of the file in force, "" for an empty configuration, None before the first one
        self.name: str | None = None
        self._settings = settings
        self._cluster = cluster
        self._notify = notify
        self._labels: dict[str, str] | None = None
        self._checked: tuple[str, bytes] = "", b""

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the config file, as JSON data."""
        state = "waiting" if self.name is None else "written"
        return [
            {
                "resource": "config",
                "state": state,
                "reason": self.problem.text,
                "file": self.name or "",
            }
        ]

    async def run(self) -> None:
        """Follow label and files until canceled; with `oneshot`, write the file and end.

        NvctError if `oneshot` is set and the file is missing or malformed.
        """
        try:
            if self._settings.oneshot:
                self._see(await self._cluster.find(NODE, self._settings.node))
                self._update()
                return
            watch = node_watch.follow(
                self._cluster, self._settings.node, self._see, self._complain
            )
            await together(watch, self._follow())
        finally:
            await self._cluster.close()

    async def _follow(self) -> None:
        while True:
            self.reload.clear()
            if self._labels is not None:
                try:
                    self._update()
                    self.problem.clear()
                except NvctError as error:
                    self._complain(error)
            await until_set(self.reload, tick(FILES_S))

    def _see(self, node: Object | None) -> None:
        if node is None:
            raise node_watch.no_node(self._settings.node)
        self._labels = node["metadata"].get("labels") or {}
        self.reload.set()

    def _update(self) -> None:
        """Put the chosen file in force; NvctError, and no change, if it is missing or wrong."""
        known = self._settings
        label = (self._labels or {}).get(known.node_label)
        name = choose(known, label, files(known.source))
        data = self._content(f"{known.source}/{name}") if name else b""
        if data == procfs.read_bytes(known.target):
            self.name = name
            return
        with OSErrorsAs(HostError, f"{known.target} cannot be written"):
            os.makedirs(os.path.dirname(known.target), exist_ok=True)
            # This replaces a link, which NVIDIA's program may have made there.
            write_atomic(known.target, data, mode=MODE, sync=False)
        self.name = name
        count = self._notify() if known.send_signal and not known.oneshot else 0
        self._log.info(f"config file {name or '(empty)'} is in force; programs notified: {count}")

    def _content(self, path: str) -> bytes:
        """Return the content of a config file; NvctError if the programs would refuse it."""
        if self._checked != (path, procfs.read_bytes(path)):
            self._checked = path, _checked(path)
        return self._checked[1]

    def _complain(self, error: NvctError) -> None:
        stays = "" if self.name is None else f"; {self.name or 'the empty one'} stays in force"
        self.problem.tell(error, after=stays)


def _checked(path: str) -> bytes:
    data = procfs.read_bytes(path)
    if data is None:
        raise HostError(f"config file {path} cannot be read")
    # The folder of MPS is a setting that only those programs know, so any folder will do here.
    device_plugin.resolve([f"--config-file={path}", "--mps-root=/"], {})
    if procfs.read_bytes(path) != data:
        raise HostError(f"config file {path} is being changed")
    return data


def files(folder: str) -> list[str]:
    """Return the names of a folder's config files; HostError if the folder cannot be read."""
    with OSErrorsAs(
        HostError,
        f"the folder of config files {folder}",
        hint="mount a ConfigMap there, or set CONFIG_FILE_SRCDIR to another folder",
    ):
        found = sorted(os.listdir(folder))
    return [name for name in found if name[0] != "." and os.path.isfile(f"{folder}/{name}")]


def choose(settings: Settings, label: str | None, available: Sequence[str]) -> str:
    """Return the name of the file that a node gets, "" for an empty configuration.

    HostError if the named file does not exist, or nothing names one.
    """
    there = f"the folder has {', '.join(available) or 'no config file'}"
    wanted = (
        (label, f"label {settings.node_label} of node {settings.node}"),
        (settings.default, "the default"),
    )
    for name, what in wanted:
        if name:
            if name not in available:
                raise HostError(
                    f"{what} names the config file {name!r}, which {settings.source} lacks",
                    hint=there,
                )
            return name
    for strategy in settings.fallbacks:
        if strategy == NAMED and DEFAULT_NAME in available:
            return DEFAULT_NAME
        if strategy == SINGLE and len(available) == 1:
            return available[0]
        if strategy == EMPTY:
            return ""
    raise HostError(
        f"no config file for node {settings.node}: it has no label {settings.node_label}, "
        "and there is no default",
        hint=f"label the node, or set DEFAULT_CONFIG or FALLBACK_STRATEGIES; {there}",
    )


def processes(name: str, proc: str = "/proc") -> list[int]:
    """Return the process IDs of a program; the pod's containers share a PID namespace.

    Processes that the program has forked are left out.
    """
    found = [
        int(entry)
        for entry in procfs.list_directory(proc)
        if entry.isdigit() and int(entry) != os.getpid() and _runs(f"{proc}/{entry}", name)
    ]
    return [pid for pid in found if procfs.parent(f"{proc}/{pid}") not in found]


def signal_processes(name: str, number: int) -> int:
    """Send a signal to a program's processes; return how many got it."""
    count = 0
    for pid in processes(name):
        try:
            os.kill(pid, number)
            count += 1
        except (ProcessLookupError, PermissionError):
            continue  # it has just ended, or belongs to another user
    return count


def _runs(path: str, name: str) -> bool:
    words = (procfs.read_text(f"{path}/cmdline") or "").split("\0")[:WORDS]
    return any(os.path.basename(word) == name for word in words)
