# SPDX-License-Identifier: Apache-2.0
"""Gives this node's programs the config file that its label names.

The file is copied, after a check, so a bad one never replaces a good one, not even after a
restart. A changed label or ConfigMap has an effect at once, without a restart.
"""

from __future__ import annotations

import asyncio
import os

from nvct.agent.config_manager import choice
from nvct.agent.device_plugin import config_file
from nvct.agent.kubernetes import node_watch
from nvct.agent.kubernetes.cluster import NODE, ClusterError
from nvct.agent.waiting import tick, until_set
from nvct.errors import HostError, NvctError
from nvct.linux.files import write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nvct.agent.config_manager.options import Settings
    from nvct.agent.kubernetes.cluster import Cluster, Object
    from nvct.agent.labels.facts import Labels
    from nvct.agent.logs import Log
    from nvct.agent.web.exposition import Family

FILES_S = 1.0
"""How often the folder of config files is looked at."""
MODE = 0o644


class ConfigManager:
    """The task of the agent that chooses its node's config file.

    Attributes:
        reload: set it to look again at once.
        name: of the file in force, "" for an empty configuration, None before there is one.
        problem: why the file that is wanted is not in force, "" if it is.
    """

    def __init__(
        self, settings: Settings, cluster: Cluster, notify: Callable[[], int], log: Log
    ) -> None:
        """Do nothing yet.

        Args:
            settings: of the program; the node's name is known.
            cluster: of the node.
            notify: notifies the programs of a change, and returns how many there are.
            log: for what happens.
        """
        self.reload = asyncio.Event()
        self.name: str | None = None
        self.problem = ""
        self._settings = settings
        self._cluster = cluster
        self._notify = notify
        self._log = log
        self._labels: Labels | None = None
        self._checked: tuple[str, bytes] = "", b""

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the config file, as JSON data."""
        state = "waiting" if self.name is None else "written"
        return [
            {"resource": "config", "state": state, "reason": self.problem, "file": self.name or ""}
        ]

    def metrics(self) -> Iterable[Family]:
        """Return no metrics."""
        return ()

    async def run(self) -> None:
        """Follow label and files until canceled, or write the file once.

        Raises:
            NvctError: once, and there is no good file.
        """
        try:
            if self._settings.oneshot:
                self._see(await self._cluster.find(NODE, self._settings.node_name))
                self._update()
                return
            watch = asyncio.create_task(
                node_watch.follow(
                    self._cluster, self._settings.node_name, self._see, self._complain
                )
            )
            try:
                await self._follow(watch)
            finally:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
        finally:
            await self._cluster.close()

    async def _follow(self, watch: asyncio.Task[None]) -> None:
        while True:
            if watch.done():
                watch.result()
            self.reload.clear()
            if self._labels is not None:
                try:
                    self._update()
                    self.problem = ""
                except NvctError as error:
                    self._complain(error)
            await until_set(self.reload, tick(FILES_S))

    def _see(self, node: Object | None) -> None:
        if node is None:
            raise ClusterError(
                f"the cluster has no Node {self._settings.node_name}",
                hint="give its name: NODE_NAME, from the field spec.nodeName",
            )
        self._labels = node["metadata"].get("labels") or {}
        self.reload.set()

    def _update(self) -> None:
        """Put the wanted file in force if it is not.

        Raises:
            NvctError: there is none, or it is malformed; the former one stays in force.
        """
        settings = self._settings
        label = (self._labels or {}).get(settings.node_label)
        name = choice.choose(settings, label, choice.names(settings.source))
        data = self._content(f"{settings.source}/{name}") if name else b""
        if data == _read(settings.target):
            self.name = name
            return
        try:
            os.makedirs(os.path.dirname(settings.target), exist_ok=True)
            # A link there is of NVIDIA's program.
            write_atomic(settings.target, data, mode=MODE, sync=False)
        except OSError as error:
            raise HostError(f"{settings.target} cannot be written: {error.strerror}") from error
        self.name = name
        count = self._notify() if settings.send_signal and not settings.oneshot else 0
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
        text = f"{error.message}{f' ({error.hint})' if error.hint else ''}"
        if text != self.problem:
            self.problem = text
            stays = "" if self.name is None else f"; {self.name or 'the empty one'} stays in force"
            self._log.error(f"{text}{stays}")


def _checked(path: str) -> bytes:
    """Return the content of a config file that the programs accept.

    Raises:
        NvctError: they do not accept it, or it cannot be read.
    """
    data = _read(path)
    if data is None:
        raise HostError(f"config file {path} cannot be read")
    # The folder of MPS is a setting of the programs, which are not this one.
    config_file.resolve([f"--config-file={path}", "--mps-root=/"], {})
    if _read(path) != data:
        raise HostError(f"config file {path} is being changed")
    return data


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None
