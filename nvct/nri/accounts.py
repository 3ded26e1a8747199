# SPDX-License-Identifier: Apache-2.0
"""Records which container has which GPU, and since when, for `nvct ps`, `nvct log` and metrics.

A container has the GPUs of its final specification, whoever added them. The engine shows that
specification after the create, and those of all containers when the plugin connects. Contract: no
create fails because a record cannot be written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from nvct.container.recorder import ASKED
from nvct.errors import NvctError, shortened
from nvct.host import gpu_record
from nvct.host.gpu_record import Holding, Record
from nvct.host.recorder import Outcome, Recorder
from nvct.nri import nri_pb2 as api
from nvct.nri.container import name_of

TASK = "nvct-nri"
CLAIM = "creating-"
"""Prefix of a lock's name: the plugin that holds the lock gives the container its devices."""
CREATED = 1
"""The state of a container that has not been started."""
CREATING = 256
"""The most unfinished creates that are remembered; an engine makes fewer at a time."""

Names = Callable[[Collection[tuple[int, int]]], dict[str, set[tuple[int, int]]]]


class Accounts:
    """The record of a node.

    Args:
        names: returns the GPUs and MIG devices that have some of these nodes, with their nodes.
        say: takes a line for the plugin's own log.
    """

    def __init__(self, folder: str, names: Names, say: Callable[[str], None]) -> None:
        self._folder, self._names, self._say = folder, names, say
        former = gpu_record.read(folder, of_the_past=True) or Record()
        self._holdings = {each.id: each for each in former.holdings}
        self._counts = dict.fromkeys(("given", "refused", "audited"), 0)
        self._creating: dict[str, dict[str, str]] = {}
        self._claims: dict[str, int] = {}
        self._lock = -1
        self._problem = ""
        self._recorder: Recorder | None = None
        self._write()
        self._sweep()

    def _sweep(self) -> None:
        """Remove the claims of a plugin that was killed."""
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if name.startswith(CLAIM):
                    with suppress(OSError, NvctError):  # another plugin holds it
                        fd = gpu_record.hold(self._folder, name, alone=True)
                        gpu_record.drop(fd, name, self._folder)

    def claim(self, container: api.Container) -> bool:
        """Report whether this plugin must give a container its devices.

        While a newer plugin replaces an older one, an engine asks both, and refuses the create if
        both give the same device. So only the first one gives it, or the other one if the first
        has died.
        """
        if container.id in self._claims:
            return True
        try:
            self._claims[container.id] = gpu_record.hold(
                self._folder, f"{CLAIM}{container.id}", alone=True
            )
        except BlockingIOError:
            return False
        except (OSError, NvctError):
            return True  # without a record, there is no other plugin to agree with
        if len(self._claims) > CREATING:
            self._drop(next(iter(self._claims)))
        return True

    def _drop(self, id_: str) -> None:
        if id_ in self._claims:
            gpu_record.drop(self._claims.pop(id_), f"{CLAIM}{id_}", self._folder)

    def begin(self, container: api.Container, **texts: str) -> None:
        """Keep texts about a create, `asked` and `notes`, until the create is done."""
        cut = {name: shortened(text, ASKED) for name, text in texts.items()}
        self._creating.setdefault(container.id, {}).update(cut)
        if len(self._creating) > CREATING:
            del self._creating[next(iter(self._creating))]

    def refuse(self, pod: api.PodSandbox, container: api.Container, error: NvctError) -> None:
        """Record that a container is refused."""
        self._drop(container.id)
        texts = {"error": error.message, "code": error.code, "hint": error.hint or ""}
        self._record("refused", pod, container, texts)
        self._write()

    def audit(self, container: api.Container, error: NvctError) -> None:
        """Record that a container would be refused."""
        self._counts["audited"] += 1
        self.begin(container, notes=f"audit: {error.message}")
        self._write()

    def add(self, pod: api.PodSandbox, container: api.Container) -> None:
        """Log a created container if it has a GPU; it holds the GPU only after its start.

        Of two plugins, only the one that has the claim logs it.
        """
        texts = self._creating.pop(container.id, {})
        holding = self._holding(pod, container, time.time())
        if holding is None:
            self._drop(container.id)
            return
        if self.claim(container):
            texts["result"] = ", ".join(holding.devices)
            self._record("given", pod, container, texts)
            self._write()

    def start(self, pod: api.PodSandbox, container: api.Container) -> None:
        """Record that a container has started and holds its GPUs."""
        self._drop(container.id)
        holding = self._holding(pod, container, time.time())
        if holding is not None:
            self._holdings[holding.id] = holding
            self._write()

    def remove(self, container: api.Container) -> None:
        """Record that a container has ended."""
        self._drop(container.id)
        self._creating.pop(container.id, None)
        if self._holdings.pop(container.id, None):
            self._write()

    def replace(self, containers: Iterable[tuple[api.PodSandbox, api.Container]]) -> None:
        """Replace the record by all containers of the engine; a known container keeps its time.

        A container that has not been started holds nothing.
        """
        made, holdings = set(), {}
        for pod, container in containers:
            if container.state == CREATED:
                made.add(container.id)
            elif holding := self._holding(pod, container, 0.0):
                holdings[holding.id] = holding
        for id_ in self._claims.keys() - made:
            self._drop(id_)
        self._holdings = holdings
        self._write()

    def _holding(
        self, pod: api.PodSandbox, container: api.Container, now: float
    ) -> Holding | None:
        nodes = {(node.major, node.minor) for node in container.linux.devices if node.type == "c"}
        devices = self._names(nodes)
        if not devices:
            return None
        former = self._holdings.get(container.id)
        since = former.since if former else container.created_at / 1e9 or now
        return Holding(
            id=container.id, namespace=pod.namespace, pod=pod.name, container=container.name,
            since=round(since, 3), devices=tuple(devices),
            numbers=tuple(sorted(set[tuple[int, int]]().union(*devices.values()))),
        )  # fmt: skip

    def _record(
        self,
        outcome: Outcome,
        pod: api.PodSandbox,
        container: api.Container,
        texts: dict[str, str],
    ) -> None:
        self._counts[outcome] += 1
        with suppress(OSError, NvctError):
            self._hold()
        if self._recorder is not None:
            self._recorder.decided(TASK, outcome, name_of(pod, container), **texts)

    def _hold(self) -> None:
        """Hold the lock and open the log; again if somebody has replaced or emptied the folder.

        Raises:
            OSError, UnsafePathError: the lock cannot be taken.
        """
        if self._lock >= 0:
            with suppress(OSError):
                ours, there = os.fstat(self._lock), os.lstat(f"{self._folder}/{gpu_record.LOCK}")
                if os.path.samestat(ours, there):
                    return
            self._say(f"{self._folder} was replaced: record and log go on in the new folder")
            os.close(self._lock)
            self._lock = -1
        self._lock = gpu_record.hold(self._folder)
        self._recorder = Recorder(self._folder)

    def _write(self) -> None:
        problem = ""
        try:
            self._hold()
            record = Record(holdings=tuple(self._holdings.values()), decisions=self._counts)
            gpu_record.write(record, self._folder)
        except (OSError, NvctError) as error:
            problem = f"{self._folder}: {error}: nvct ps and the metrics do not show pods' GPUs"
        if problem and problem != self._problem:
            self._say(problem)
        self._problem = problem
