# SPDX-License-Identifier: Apache-2.0
"""Gives this node's programs the config file that its label names.

The file is copied, after a check, so a bad one never replaces a good one, not even after a
restart. A changed label or ConfigMap has an effect at once, without a restart.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

from nvct.agent.config_manager import choice, processes, settings
from nvct.agent.config_manager.settings import Settings
from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.core.task import Task
from nvct.agent.core.waiting import tick, together, until_set
from nvct.agent.device_plugin import settings as device_plugin
from nvct.agent.kubernetes import node_watch
from nvct.agent.kubernetes.cluster import NODE, Cluster, Object, no_node
from nvct.errors import HostError, NvctError
from nvct.linux.files import write_atomic

FILES_S = 1.0
"""How often the folder of config files is looked at."""
MODE = 0o644


def make(context: Context) -> ConfigManager:
    """Return the task; after a change it signals a program, or the agent's other tasks.

    Raises:
        UsageError: a setting is wrong.
        ClusterError: there is no access to the cluster.
    """
    known = context.load(settings.resolve)
    target = context.env.get("CONFIG_FILE")
    if context.in_agent and target and "CONFIG_FILE_DST" not in context.env:
        known = replace(known, target=target)

    def notify() -> int:
        if not context.in_agent:
            return processes.send(known.process, known.signal)
        os.kill(os.getpid(), signal.SIGHUP)
        return 1

    return ConfigManager(known, context.connect(known.kubeconfig), notify, context.journal)


class ConfigManager(Task):
    """The task of the agent that chooses its node's config file; `reload` has it look at once.

    Attributes:
        name: of the file in force, "" for an empty configuration, None before there is one.
    """

    def __init__(
        self, settings: Settings, cluster: Cluster, notify: Callable[[], int], log: Log
    ) -> None:
        """Do nothing yet.

        Args:
            notify: notifies the programs of a change, and returns how many there are.
        """
        super().__init__(log, problems_are_errors=True)
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
        """Follow label and files until canceled, or write the file once.

        Raises:
            NvctError: once, and there is no good file.
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
            raise no_node(self._settings.node)
        self._labels = node["metadata"].get("labels") or {}
        self.reload.set()

    def _update(self) -> None:
        """Put the wanted file in force if it is not.

        Raises:
            NvctError: there is none, or it is malformed; the former one stays in force.
        """
        known = self._settings
        label = (self._labels or {}).get(known.node_label)
        name = choice.choose(known, label, choice.names(known.source))
        data = self._content(f"{known.source}/{name}") if name else b""
        if data == _read(known.target):
            self.name = name
            return
        try:
            os.makedirs(os.path.dirname(known.target), exist_ok=True)
            # A link there is of NVIDIA's program.
            write_atomic(known.target, data, mode=MODE, sync=False)
        except OSError as error:
            raise HostError(f"{known.target} cannot be written: {error.strerror}") from error
        self.name = name
        count = self._notify() if known.send_signal and not known.oneshot else 0
        self._log.info(f"config file {name or '(empty)'} is in force; programs notified: {count}")

    def _content(self, path: str) -> bytes:
        """Return the content of a config file that the programs accept.

        Raises:
            NvctError: they do not accept it, or it cannot be read.
        """
        if self._checked != (path, _read(path)):
            self._checked = path, _checked(path)
        return self._checked[1]

    def _complain(self, error: NvctError) -> None:
        stays = "" if self.name is None else f"; {self.name or 'the empty one'} stays in force"
        self.problem.tell(error, after=stays)


def _checked(path: str) -> bytes:
    """Return the content of a config file that the programs accept.

    Raises:
        NvctError: they do not accept it, or it cannot be read.
    """
    data = _read(path)
    if data is None:
        raise HostError(f"config file {path} cannot be read")
    # The folder of MPS is a setting of the programs, which are not this one.
    device_plugin.resolve([f"--config-file={path}", "--mps-root=/"], {})
    if _read(path) != data:
        raise HostError(f"config file {path} is being changed")
    return data


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
