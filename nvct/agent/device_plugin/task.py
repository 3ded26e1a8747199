# SPDX-License-Identifier: Apache-2.0
"""The device plugin: offers the resources of this machine to the kubelet.

Level-triggered: after each change of the driver, of MIG devices or of the settings, it computes
the resources again, and gives each registration its new content. It offers nothing before the
driver answers and, with CDI, before the specifications are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from nvct.agent.core import logs, waiting
from nvct.agent.core.context import Context, Work
from nvct.agent.core.logs import Log
from nvct.agent.core.program import ASKED_S
from nvct.agent.core.resources_mode import CLASSIC, DRA, ResourcesMode
from nvct.agent.core.task import PERIOD_S, SETTLE_S, Task
from nvct.agent.device_plugin import list_strategy, preferred, served, settings, startup_taint
from nvct.agent.device_plugin.counts import Counts, families
from nvct.agent.device_plugin.list_strategy import AskEngine
from nvct.agent.device_plugin.mig_changes import MigChanges
from nvct.agent.device_plugin.mps_watch import MpsWatch
from nvct.agent.device_plugin.resources import (
    Content,
    Node,
    Resource,
    imex_channels,
    resources,
    without,
)
from nvct.agent.device_plugin.served import ServedResources
from nvct.agent.device_plugin.settings import SPEC_FOLDER, Settings
from nvct.agent.device_plugin.spec_files import PluginFiles
from nvct.agent.device_plugin.startup_taint import StartupTaint
from nvct.agent.health import settings as health_settings
from nvct.agent.health.board import Change
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.store import Store
from nvct.agent.machine.discovery import Discovery
from nvct.agent.machine.inventory import Inventory
from nvct.agent.nvml.client import ReleasedError
from nvct.agent.web.exposition import Family
from nvct.errors import DriverNotFoundError, EngineError, NvctError, NvmlError, UsageError
from nvct.host import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.device_plugin.registration import Registration

BROKEN_S = 2.0  # Until the next attempt if NVML fails though the driver is loaded, or a GPU hangs
RETRY_S = 10.0  # Until the next attempt if the driver does not answer
LATER = ("device_plugin.registration",)  # Imported when the task has something to offer


def make(context: Context) -> DevicePlugin:
    """Return the task; in the agent, it also starts MPS daemons, else mps-control-daemon does."""

    def discovery(known: Settings) -> Discovery:
        return context.discovery(known.container_driver_root, known.device_discovery_strategy)

    def health(known: Settings) -> HealthEngine:
        return context.health(
            health_settings.resolve(
                known.health_recovery, known.health_probation, known.xid_table, context.env,
                known.health_preflight,
            )
        )  # fmt: skip

    return DevicePlugin(
        lambda: context.load(settings.resolve), discovery, health, context.journal,
        starts_mps=context.in_agent, mode=context.shared.mode,
        ask_engine=lambda known: list_strategy.ask(context, discovery(known), known),
        taint=lambda known: startup_taint.of_settings(known, context.connect, context.journal),
        store=Store(context.folder, name=served.LAST) if context.in_agent else None,
        hands_over=context.shared.hands_over,
    )  # fmt: skip


class DevicePlugin(Task):
    """The task of the agent that serves the kubelet's device plugin API.

    The event `reload` makes it read the settings again and, if these are the same, consider every
    device healthy. `starts_mps`: whether it starts MPS control daemons; else another program does.
    `hands_over`: begins the task's last work and returns True if another agent serves this node
    next.
    """

    def __init__(
        self,
        load: Callable[[], Settings],
        discovery: Callable[[Settings], Discovery],
        health: Callable[[Settings], HealthEngine],
        log: Log,
        *,
        spec_folder: str = SPEC_FOLDER,
        ask_engine: AskEngine = list_strategy.nobody,
        starts_mps: bool = False,
        mode: ResourcesMode | None = None,
        taint: Callable[[Settings], StartupTaint | None] = lambda _: None,
        store: Store | None = None,
        hands_over: Callable[[Work], bool] = lambda _: False,
    ) -> None:
        super().__init__(log)
        self._load = load
        self._make_discovery = discovery
        self._find_health = health
        self._files = PluginFiles(spec_folder, log)
        self._ask_engine = ask_engine
        self._mode = mode or ResourcesMode(CLASSIC, is_alone=True)
        self._settings = load()
        self._strategy = list_strategy.Choice((), "not chosen yet")
        self._taint = taint(self._settings)
        self._hands_over = hands_over
        self._discovery = discovery(self._settings)
        self._has_nvml = False
        self._is_first = True
        self._offered: tuple[object, ...] | None = None
        self._loaded = ""  # the version of the driver whose files were written last
        self._looking = asyncio.Lock()  # an older look must not end after a newer one
        self._failure: NvctError | None = None
        self._counts = Counts()
        self._served = ServedResources(log, self._counts, self._discovery.host, store)
        self._health = health(self._settings)
        self._mig_changes = MigChanges(self._show_health)
        self._mps = MpsWatch(log, self._show_health, starts=starts_mps)

    @property
    def registrations(self) -> Mapping[str, Registration]:
        """Return the registrations by resource name."""
        return self._served.current

    @property
    def is_settled(self) -> bool:  # type: ignore[override]  # of others it is a constant
        """Return whether the kubelet has read its first list, or will not read it soon."""
        states = [registration.state for registration in self.registrations.values()]
        has_looked = bool(states or self._offered or self._failure)
        return has_looked and not set(states) & {"absent", "serving", "registering"}

    def describe(self) -> list[dict[str, object]]:
        """Return the state of each resource, or why there is none, as JSON data."""
        entries: list[dict[str, object]] = [
            {
                "resource": registration.name,
                "state": registration.state,
                "reason": registration.reason,
                "devices": len(registration.endpoint.content.resource.devices),
                "unhealthy": dict(registration.endpoint.content.unhealthy),
                "withheld": self._withheld(registration.endpoint.content.resource),
                "strategy": ",".join(self._strategy.strategies),
                "strategy_reason": self._strategy.reason,
                "mig_strategy": self._settings.mig_strategy,
            }
            for registration in self._served.all
        ]
        for name, reason in self._mps.waiting().items():
            entries.append(_without_devices(name, "absent", reason))
        if self._failure is not None and not self.registrations:
            entries.append(_without_devices("every resource", "absent", self._failure.message))
        if self._taint is not None and self._taint.reason:
            name = f"startup taint {self._taint.key}"
            entries.append(_without_devices(name, "kept", self._taint.reason))
        return entries

    def metrics(self) -> Iterator[Family]:
        """Yield the plugin's own metrics: its devices, its counters, the health of the GPUs."""
        yield from self._served.metrics()
        yield from families(self._counts)
        yield from self._health.metrics()

    async def run(self) -> None:
        """Serve until canceled.

        NvctError if the MIG devices do not fit the strategy at the start; or if the driver does
        not answer then, and the settings say not to wait for it.
        """
        works = [
            self._follow(),
            self._served.watch(),
            self._health.run(
                lambda: self._discovery.nvml if self.registrations and self._has_nvml else None,
                self._note_health,
            ),
            self._mps.run(lambda: self._discovery.nvml),
            self._mig_changes.watch(),
            served.watch_kubelet(
                self._settings.kubelet_socket, lambda: self.registrations, self._log
            ),
        ]
        if self._taint is not None:
            works.append(self._taint.run(self._listed))
        try:
            await waiting.together(*works)  # none ends without an error
        finally:
            if not self._hands_over(self._served.hand_over):
                await self._served.stop()

    async def _follow(self) -> None:
        self._settings, self._strategy = await self._chosen(self._settings)
        while True:
            await self._follow_machine(self._signature, self._try_offer)
            await self._reload()
            self._offered = None

    async def _signature(self) -> tuple[object, ...]:
        await self._files.look(self._settings, self._discovery)
        machine = await self._discovery.signature()
        has_ended = bool(self._mig_changes.ended)
        return *machine, *self._files.signature, self._others(), has_ended

    async def _try_offer(self, is_change: bool) -> float:  # noqa: FBT001
        """Offer this machine's resources; return the seconds until it is looked at again."""
        is_first, self._is_first = self._is_first, False
        try:
            async with self._looking:
                inventory = await self._offer()
        except NvctError as error:
            if is_first and not _can_pass(error, self._settings):
                raise
            return self._fail(error)
        self._health.set_nvml_problem("look", "")
        self._failure = None
        return BROKEN_S if inventory.unanswered else SETTLE_S if is_change else PERIOD_S

    async def _chosen(self, settings: Settings) -> tuple[Settings, list_strategy.Choice]:
        choice = await list_strategy.choose(settings, self._ask_engine)
        if settings.device_list_strategy != choice.strategies:
            self._log.info(f"device list strategy {','.join(choice.strategies)}, {choice.reason}")
        return replace(settings, device_list_strategy=choice.strategies), choice

    async def _reload(self) -> None:
        """Read the settings again; if they are the same, the signal reports a repair."""
        self.reload.clear()
        self._log.info("Received SIGHUP, reading the settings again")
        is_repair = False
        try:
            settings, strategy = await self._chosen(self._load())
            self._health = self._find_health(settings)
            is_repair = settings.config_content == self._settings.config_content
            self._settings, self._strategy = settings, strategy
        except NvctError as error:
            self._log.error(f"the settings stay as they were: {error.message}")
        self._discovery = self._make_discovery(self._settings)
        if is_repair:
            self._health.forget()

    async def _look_again(self) -> None:
        """Write the CDI specifications, before Allocate, if the driver was replaced since."""
        self._discovery.nvml.check()
        loaded = procfs.driver_version(self._discovery.roots)
        if self._settings.uses_cdi and self._loaded != loaded:
            async with self._looking:
                await self._offer()

    async def _offer(self) -> Inventory:
        if self._strategy.problem:  # the engine may have changed since
            self._settings, self._strategy = await self._chosen(self._settings)
            list_strategy.check(self._strategy)
        ended = self._mig_changes.ended
        inventory = await self._look()
        offered = inventory, self._files.signature, self._others()
        if offered == self._offered:
            self._mig_changes.looked(ended)
            self._show_health()
            return inventory
        self._has_nvml = inventory.mode == "nvml"
        if self._settings.uses_cdi and not self._has_nvml:
            raise UsageError("CDI device list strategies are only for machines with NVML")
        offers, taken = self._mode.plugin_state()
        found, warnings = resources(inventory, self._settings) if offers else ({}, [])
        found = without(found, taken)
        for warning in (*inventory.warnings, *warnings):
            self._log.warning(warning)
        node = await self._node(inventory)
        shared = found.values() if self._settings.sharing.uses_mps else ()
        await self._mps.want(shared, self._discovery.nvml)
        waiting = self._mps.waiting().keys() - self.registrations.keys()
        scores = preferred.scores(inventory.links)
        if found and self._has_nvml:
            await self._health.begin(self._discovery.nvml)
        if not found and offers:
            self._log.info("No devices found. Waiting indefinitely.")
        self._mig_changes.looked(ended)
        self._served.offer(
            self._content(resource, node, scores)
            for name, resource in found.items()
            if name not in waiting
        )
        unwritten = any(self._files.unhealthy(each, self._settings) for each in found.values())
        self._offered = None if unwritten else offered
        return inventory

    def _content(
        self, resource: Resource, node: Node, scores: Mapping[tuple[str, str], int]
    ) -> Content:
        return Content(
            resource=resource, settings=self._settings, node=node, scores=scores, mode=self._mode,
            unhealthy=self._unhealthy(resource), look=self._look_again,
        )  # fmt: skip

    def _others(self) -> tuple[object, ...]:
        return self._mps.has_run, self._mode.plugin_state()

    async def _look(self) -> Inventory:
        """Return the inventory; gRPC is imported while NVML makes its first report."""
        looking = asyncio.ensure_future(self._discovery.inventory())
        try:
            if not self.registrations:
                await asyncio.wait([looking], timeout=ASKED_S)
                if not looking.done():
                    served.load()
            return await looking
        finally:
            looking.cancel()

    async def _node(self, inventory: Inventory) -> Node:
        """Return the node's part of answers; with CDI, write the specifications first."""
        channels = imex_channels(self._settings, inventory.imex_channels, self._log)
        features: tuple[str, ...] = ()
        if self._settings.uses_cdi:
            loaded = procfs.driver_version(self._discovery.roots)
            features = await self._files.write(self._settings, self._discovery, channels)
            self._loaded = loaded
        return Node(
            control_nodes=inventory.control_nodes, imex_channels=channels, features=features
        )

    def _fail(self, error: NvctError) -> float:
        """Offer nothing, or unhealthy devices if only NVML fails; return seconds until a retry."""
        if self._failure is None or error.message != self._failure.message:
            self._log.error(logs.sentence(error))
        self._failure = error
        is_loaded = isinstance(error, ReleasedError) or self._discovery.has_driver()
        if isinstance(error, NvmlError) and is_loaded:
            is_new = isinstance(error, ReleasedError) and not self.registrations
            if is_new or self.registrations:
                self._health.set_nvml_problem("look", error.message)
            if is_new and self._mode.plugin_state()[0]:
                self._served.offer_last(lambda known: self._content(known, Node(), {}))
            return BROKEN_S
        self._offered = None
        self._served.offer(())
        return RETRY_S

    def _listed(self) -> list[str]:
        """Return the names of all resources; [] while the kubelet has not read each list."""
        if self._mode.mode == DRA:
            return [DRA] if self._mode.is_listed else []
        states = {name: entry.state for name, entry in self.registrations.items()}
        return list(states) if set(states.values()) == {"listed"} else []

    def _unhealthy(self, resource: Resource) -> dict[str, str]:
        """Return why devices of a resource are unhealthy, by id."""
        known = {
            device.id: reason
            for device in resource.devices.values()
            if (reason := self._health.problem(device.gpu, device.instance))
        }
        of_mps, of_mig = self._mps.unhealthy(resource), self._mig_changes.unhealthy(resource)
        of_cdi = self._files.unhealthy(resource, self._settings)
        return {**of_mps, **of_cdi, **of_mig, **known}

    def _withheld(self, resource: Resource) -> list[str]:
        health = self._health
        changing = self._mig_changes.unhealthy(resource)
        return [
            device.id
            for device in resource.devices.values()
            if health.is_passing(device.gpu, device.instance)
            or (device.id in changing and not health.problem(device.gpu, device.instance))
        ]

    def _show_health(self) -> None:
        self._served.show_health(self._unhealthy)

    def _note_health(self, changes: Iterable[Change]) -> None:
        """Tell the kubelet which devices are healthy; count those that an XID made unhealthy."""
        for change in changes:
            if change.after.must_reset and change.before.state != "unhealthy":
                for name, registration in self.registrations.items():
                    devices = registration.endpoint.content.resource.devices.values()
                    self._counts["xid_devices", name] += sum(
                        change.key.concerns(device.gpu, device.instance) for device in devices
                    )
        self._show_health()


def _without_devices(name: str, state: str, reason: str) -> dict[str, object]:
    return {"resource": name, "devices": 0, "unhealthy": {}, "state": state, "reason": reason}


def _can_pass(error: NvctError, settings: Settings) -> bool:  # not MIG devices that do not fit
    is_of_driver = isinstance(error, (NvmlError, DriverNotFoundError, EngineError))
    is_waited_for = is_of_driver and not settings.fail_on_init_error
    return is_waited_for or isinstance(error, ReleasedError)
