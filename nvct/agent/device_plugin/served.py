# SPDX-License-Identifier: Apache-2.0
"""The registrations of all resources, each run by an asyncio task of its own.

A resource that is withdrawn is served with an empty list until the kubelet has read that. If it is
offered again before, its registration goes on.

The offer is compared with the devices that the kubelet has, by its PodResources service. A program
that registers the same resource under another socket takes it over: the kubelet reads that
program's list, does not end our stream, and has no device at all when that program ends (seen on
Kubernetes 1.36). Nothing happens to our sockets; only the kubelet can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from nvct import typed
from nvct.agent.core.logs import Log, Problem
from nvct.agent.device_plugin.counts import PREFIX, Counts
from nvct.agent.device_plugin.resources import Content, Resource
from nvct.agent.device_plugin.settings import FOLDER
from nvct.agent.health.store import Store
from nvct.agent.host_side import Host
from nvct.agent.kubelet.pod_resources import PodResources
from nvct.agent.machine.folder_watch import FolderWatch
from nvct.agent.web.exposition import Family, family
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.device_plugin.registration import Registration

LAST = "devices.json"
"""The file of the last offer, for a process that starts while the driver is being replaced and so
cannot see the devices."""
BLIND_S = 0.1
"""How often the sockets are looked at, by a stat for each, where inotify reports no changes."""
KUBELET_S = 10.0  # Between two questions to the kubelet
HAND_OVER_S = 20.0  # How long another instance can take until it serves; NVML answers it already


class ServedResources:
    """The resources that this process offers to the kubelet."""

    def __init__(
        self, log: Log, counts: Counts, host: Host | None = None, store: Store | None = None
    ) -> None:
        self._host = host
        self._store = store
        self._log = log
        self._counts = counts
        self._known: dict[str, Registration] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def all(self) -> list[Registration]:
        """Return the registrations, including those that are being withdrawn."""
        return list(self._known.values())

    @property
    def current(self) -> dict[str, Registration]:
        """Return the registrations of the resources that are offered, by name."""
        return {name: known for name, known in self._known.items() if known.leaving is None}

    def offer(self, contents: Iterable[Content]) -> None:
        """Offer these resources, and withdraw all others."""
        wanted = {content.resource.name: content for content in contents}
        if wanted and self._store:
            found = tuple(content.resource for content in wanted.values())
            self._store.write({"resources": typed.dump(found)})
        for name in self.current.keys() - wanted.keys():
            known = self._known[name]
            known.leaving = asyncio.create_task(self._leave(known), name=f"{name} leaves")
        for name, content in wanted.items():
            self._serve(name, content)

    def offer_last(self, content_of: Callable[[Resource], Content]) -> None:
        """Offer the resources that were last offered in this boot, if they are known."""
        document = self._store.read() if self._store else None
        try:
            known = document.get("resources") if isinstance(document, dict) else None
            found = typed.load(tuple[Resource, ...], known, LAST)
        except typed.MalformedError:
            return
        self.offer(map(content_of, found))

    def show_health(self, unhealthy: Callable[[Resource], Mapping[str, str]]) -> None:
        """Tell the kubelet which devices are unhealthy; `unhealthy` returns why, by id."""
        for registration in self.current.values():
            content = registration.endpoint.content
            registration.endpoint.update(
                replace(content, unhealthy=dict(unhealthy(content.resource)))
            )

    def metrics(self) -> Iterator[Family]:
        """Yield the metrics of what is offered."""
        devices, listed = [], []
        for registration in self.current.values():
            content, labels = registration.endpoint.content, {"resource": registration.name}
            unhealthy = sum(id_ in content.unhealthy for id_ in content.resource.devices)
            healthy = len(content.resource.devices) - unhealthy
            devices.append((healthy, {**labels, "health": "healthy"}))
            devices.append((unhealthy, {**labels, "health": "unhealthy"}))
            listed.append((int(registration.state == "listed"), labels))
        yield family(f"{PREFIX}_devices", "Devices that are offered to the kubelet.", devices)
        help_text = "Whether the kubelet has read the list of devices."
        yield family(f"{PREFIX}_listed", help_text, listed)

    async def watch(self) -> None:
        """Notice changes of the sockets until canceled; raise what a registration has raised."""
        with FolderWatch() as changes:
            while True:
                for registration in self.all:
                    registration.look()
                    if registration.task.done():
                        registration.task.result()  # it has yielded, unless this raises
                paths = {registration.endpoint.path for registration in self.all}
                await changes.wait(map(os.path.dirname, paths), BLIND_S)

    async def stop(self) -> None:
        """End all registrations, and remove their sockets."""
        known = self.all
        ending = [*self._ending, *(each.leaving for each in known if each.leaving)]
        await asyncio.gather(*(canceled(task) for task in ending))
        await asyncio.gather(*(canceled(each.task) for each in known))

    async def hand_over(self) -> None:
        """Keep serving until another instance has put its sockets in place of these, then stop.

        The kubelet has no device between the end of a stream and the next list.
        """
        for registration in self.all:
            registration.is_handed_over = True
        looking = asyncio.create_task(self.watch())
        tasks = [registration.task for registration in self.all]
        try:
            _, left = await asyncio.wait(tasks, timeout=HAND_OVER_S) if tasks else ((), ())
            if left:
                self._log.warning("no other agent offers the devices: they are withdrawn")
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self.stop()

    def _serve(self, name: str, content: Content) -> None:
        known = self._known.get(name)
        if known is not None:
            if known.leaving is not None:
                known.leaving.cancel()
                known.leaving = None
            known.endpoint.update(content)
            return
        from nvct.agent.device_plugin.registration import Registration  # gRPC, see `load`

        kubelet = content.settings.kubelet_socket
        folder = os.path.dirname(kubelet) if kubelet else FOLDER
        known = Registration(content, kubelet, folder, self._log, self._counts, host=self._host)
        known.task = asyncio.create_task(known.run(), name=name)
        self._known[name] = known

    async def _leave(self, registration: Registration) -> None:
        await registration.withdraw()
        del self._known[registration.name]  # from here on, another registration can have the name
        ending = asyncio.create_task(canceled(registration.task))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def load() -> None:
    """Import gRPC, which takes a tenth of a second and 12 MB: not before there is an offer."""
    from nvct.agent.device_plugin import registration  # noqa: F401


async def canceled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; raise the exception that it has already ended with."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def watch_kubelet(
    kubelet: str, registrations: Callable[[], Mapping[str, Registration]], journal: Log
) -> None:
    """Compare the registrations with the kubelet's devices until canceled.

    Nothing is compared while the kubelet's folder is not mounted, or if `kubelet` is "".
    """
    folder = os.path.dirname(os.path.dirname(kubelet))
    asked = PodResources(f"{folder}/pod-resources/kubelet.sock")
    problem = Problem(journal.info)
    try:
        while True:
            await asyncio.sleep(KUBELET_S)
            if not kubelet or not asked.is_there():
                continue
            try:
                has = await asked.allocatable()
            except HostError as error:
                problem.tell(error, "the kubelet's own list of devices is unknown: ")
                continue
            problem.clear()
            for name, registration in registrations().items():
                registration.compare(has.get(name, ()))
    finally:
        await asked.close()
