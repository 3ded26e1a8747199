# SPDX-License-Identifier: Apache-2.0
"""The DRA driver: offers this machine's GPUs by ResourceSlices, and prepares claims.

Level-triggered: after each change of the driver, of MIG devices or of a device plugin's devices,
it computes the devices again, and updates slices and CDI specifications. While NVML or the API
server does not answer, prepared claims stay prepared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from nvct.agent.core.config_file import is_excluded
from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import CLASSIC, DRA, ResourcesMode
from nvct.agent.core.task import MACHINE_S, PERIOD_S, SETTLE_S, Task
from nvct.agent.core.waiting import tick, together, until_set
from nvct.agent.dra import claims, gather, settings
from nvct.agent.dra.claim_specs import ClaimSpecs
from nvct.agent.dra.classic import Classic
from nvct.agent.dra.devices import DRIVER, Device, Offer
from nvct.agent.dra.endpoint import Endpoint
from nvct.agent.dra.instances import Instances, make_nodes
from nvct.agent.dra.journal import Journal
from nvct.agent.dra.mig_devices import offer
from nvct.agent.dra.mps_claims import ClaimDaemons
from nvct.agent.dra.prepare import Preparer
from nvct.agent.dra.publisher import Publisher
from nvct.agent.dra.settings import ON_DEMAND, Settings
from nvct.agent.health import settings as health_settings
from nvct.agent.health.engine import HealthEngine
from nvct.agent.kubelet.dra_service import ClaimRef, PreparedDevice
from nvct.agent.kubernetes.cluster import Cluster, Object
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.client import ReleasedError
from nvct.agent.web.exposition import Family, family
from nvct.errors import DriverNotFoundError, HostError, NvctError
from nvct.host import procfs

RETRY_S = 10.0
"""Seconds until the next look at the machine after a failure."""
CLASSIC_S = 10.0
"""How often the driver asks the kubelet for the devices of device plugins."""
RECONCILE_S = 60.0


def make(context: Context) -> DraDriver:
    """Return the task."""

    def load() -> Settings:
        return context.load(settings.resolve)

    known = load()
    return DraDriver(
        known,
        context.discovery(known.container_driver_root),
        lambda: context.connect(known.kubeconfig),
        context.health(health_settings.from_environment(context.env)),
        context.journal,
        load=load,
        mode=context.shared.mode,
    )


class DraDriver(Task):
    """The task of the DRA driver; the event `reload` makes it look at the machine at once.

    A reload reads all settings again, but only `excluded` has an effect.
    """

    def __init__(
        self,
        settings: Settings,
        discovery: Discovery,
        connect: Callable[[], Cluster],
        health: HealthEngine,
        log: Log,
        *,
        load: Callable[[], Settings],
        mode: ResourcesMode | None = None,
    ) -> None:
        super().__init__(log, problems_are_errors=True)
        self._settings = settings
        self._discovery = discovery
        self._health = health
        self._specs = ClaimSpecs(settings, discovery)
        self._journal = Journal(f"{settings.plugins}/{DRIVER}")
        self._daemons = ClaimDaemons(discovery.nvml, log)
        self._classic = Classic(settings.pod_resources)
        self._mode = mode or ResourcesMode(DRA, is_alone=True)
        self._mode.claims = self._journal.gpus
        self._preparer = Preparer(
            settings=settings, journal=self._journal, specs=self._specs, find=self._find,
            agent_log=log, instances=Instances(discovery.nvml, self._look_at_mig, log),
            mps=self._daemons, classic=self._classic, mode=self._mode,
        )  # fmt: skip
        self._endpoint = Endpoint(self, settings, discovery.host)
        self._load = load
        self._all = Offer()
        self._made: object = None
        self._loaded = ""  # the version of the driver whose files were written last
        self._looking = asyncio.Lock()  # an older look must not end after a newer one
        self._cluster = connect()
        self._publisher = Publisher(self._cluster, settings.node, log, self._endpoint.is_alone)
        self._is_registered = False
        self._rejected = ""

    async def run(self) -> None:
        """Serve until canceled."""
        works = [
            self._follow(),
            self._publisher.run(),
            self._reconcile(),
            self._daemons.watch(),
            self._health.run(
                lambda: self._discovery.nvml if self._all.devices else None,
                lambda _: self._offer(),
            ),
        ]
        if not self._mode.is_alone:
            node, look = self._settings.node, self.reload.set
            works.append(self._mode.follow(self._cluster, node, look, self._log))
        try:
            await together(*works)  # none ends without an error
        finally:
            await self._endpoint.stop()
            await self._classic.close()
            await self._cluster.close()

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the driver, as JSON data."""
        publisher = self._publisher
        offered, unhealthy = self._offered, [one for one in self._marked if one.unhealthy]
        others = publisher.problem.text, self._mode.problem
        return [
            {
                "resource": DRIVER,
                "state": self._state,
                "reason": next(filter(None, (self._rejected, self.problem.text, *others)), ""),
                "devices": len(offered.devices),
                "unhealthy": {one.uuid or one.name: one.unhealthy for one in unhealthy},
                "withheld": [
                    one.uuid or one.name
                    for one in unhealthy
                    if self._health.is_passing(one.gpu, one.instance)
                ],
                "mode": self._mode.mode,
                "of_device_plugins": len(self._all.devices) - len(offered.devices),
                "api": publisher.version,
                "slices_written": publisher.written,
                "mps": {**self._daemons.problems},
                "claims": self._known(),
            }
        ]

    @property
    def _state(self) -> str:
        if self._rejected:
            return "absent"
        if not (self._mode.mode and self._publisher.is_current and self._is_registered):
            return "registering"
        return "withdrawn" if self._mode.mode == CLASSIC else "listed"

    @property
    def _offered(self) -> Offer:
        """Return the devices that are offered, healthy or not."""
        return self._classic.of(self._all) if self._mode.mode == DRA else Offer()

    def metrics(self) -> Iterator[Family]:
        """Yield the driver's own metrics."""
        yield from self._health.metrics()
        preparer, written = self._preparer, self._publisher.written
        for name, help_text, value in (
            ("devices", "Devices that are offered by ResourceSlices.", len(self._offered.devices)),
            ("prepared_total", "Claims that were prepared.", preparer.prepared),
            ("prepare_seconds_total", "Seconds that it took to prepare claims.", preparer.took_s),
            ("failures_total", "Failed attempts to prepare a claim.", preparer.failures),
            ("slices_written_total", "ResourceSlices that were written or deleted.", written),
        ):
            yield family(f"nvct_dra_{name}", help_text, [(value, {})])

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """Prepare a claim for the kubelet, see `Preparer.prepare`."""
        if claim.uid not in self._journal.load():
            self._discovery.nvml.check()
            if self._loaded != procfs.driver_version(self._discovery.roots):
                await self._update()  # a new driver has files of its own
        return await self._preparer.prepare(claim)

    async def unprepare(self, claim: ClaimRef) -> None:
        """Unprepare a claim for the kubelet, see `Preparer.unprepare`."""
        await self._preparer.unprepare(claim)

    def health(self) -> dict[tuple[str, str], str]:
        """Return each device's problem, "" without one, by pool and name; the kubelet shows it."""
        return {(self._settings.node, one.name): one.unhealthy for one in self._marked}

    @property
    def _marked(self) -> Sequence[Device]:
        return self._all.with_health(self._health.problem, drops=False).devices

    def registered(self, problem: str) -> None:
        """Note the kubelet's answer to the registration; `problem` is "" if it accepts."""
        self._is_registered, self._rejected = not problem, problem
        if problem:
            self._log.error(f"the kubelet refuses driver {DRIVER}: {problem}")
        else:
            self._log.info(f"Registered DRA driver {DRIVER} with the kubelet")

    async def _follow(self) -> None:
        signature: object = None
        due = ask_at = 0.0
        while True:
            if self.reload.is_set():
                self.reload.clear()
                self._read_settings()
                signature, ask_at = None, 0.0
            now = time.monotonic()
            if now >= ask_at:
                await self._ask_classic()
                ask_at = now + CLASSIC_S
            await self._specs.look()
            current = (
                *await self._discovery.signature(), *self._specs.signature, self._is_on_demand,
            )  # fmt: skip
            if current != signature or now >= due:
                is_change, signature = current != signature, current
                is_found = await self._look()
                is_soon = is_change or (not is_found and self._discovery.has_driver())
                delay_s = SETTLE_S if is_soon else PERIOD_S if is_found else RETRY_S
                due = time.monotonic() + delay_s
            await self._serve()
            self._offer()
            self._tell_mode()
            await until_set(self.reload, tick(MACHINE_S))

    async def _look(self) -> bool:
        """Update the devices; return whether the machine's driver answers."""
        try:
            await self._update()
        except NvctError as error:
            if isinstance(error, ReleasedError):
                return False
            self.problem.tell(error)
            if isinstance(error, DriverNotFoundError):
                self._made, self._all = None, Offer()
                self._publisher.offer(self._all)
            return False
        self.problem.clear()
        return True

    async def _update(self) -> None:
        """Compute devices and CDI specifications again if the machine has changed."""
        async with self._looking:
            is_change = await self._read_machine()
        if is_change:
            await self._preparer.write_specs()
        if self._all.devices:
            await self._health.begin(self._discovery.nvml)
        self._offer()

    async def _read_machine(self) -> bool:
        """Compute the offer and the CDI edits; return whether the machine has changed."""
        before = self._journal.places()
        loaded, self._loaded = procfs.driver_version(self._discovery.roots), ""
        machine = await gather.machine(self._discovery)
        excluded = self._settings.excluded
        made = machine, self._specs.signature, self._is_on_demand, excluded
        if made == self._made:
            self._loaded = loaded
            return False
        for warning in (*machine.inventory.warnings, *await self._specs.update()):
            self._log.warning(warning)
        kept = {g.uuid for g in machine.inventory.gpus if not is_excluded(g, excluded)}
        places = self._journal.places(before)  # a claim may have begun or ended meanwhile
        profiles = self._settings.mig_profiles
        on_demand = self._is_on_demand
        self._all = offer(machine, places, on_demand=on_demand, profiles=profiles).of_gpus(kept)
        self._preparer.devices = {device.name: device for device in self._all.devices}
        self._made, self._loaded = made, loaded
        return True

    @property
    def _is_on_demand(self) -> bool:
        return self._settings.mig == ON_DEMAND and not self._publisher.lacks_counters

    async def _look_at_mig(self) -> dict[tuple[str, int], str]:
        """Make missing device nodes; return MIG devices' UUIDs by GPU and id of GPU instance."""
        await make_nodes(self._discovery.nvml, self._discovery.roots)
        async with self._looking:
            await self._read_machine()
        inventory = await self._discovery.inventory()
        return {(gpu.uuid, mig.gi): mig.uuid for gpu in inventory.gpus for mig in gpu.mig}

    def _offer(self) -> None:
        if self._made is not None:
            drops, health = self._publisher.lacks_taints, self._health
            marks = () if self._publisher.lacks_marks else (health.application_xid,)
            offered = self._offered.with_health(health.problem, *marks, drops=drops)
            if self._settings.memory_shares and not self._publisher.lacks_shares:
                offered = offered.with_shares(self._preparer.share_sizes)
            self._publisher.offer(offered)

    def _read_settings(self) -> None:
        try:
            self._settings = replace(self._settings, excluded=self._load().excluded)
        except NvctError as error:
            self.problem.tell(error)

    def _tell_mode(self) -> None:
        """Tell this agent's device plugin whether the slices are listed or withdrawn."""
        is_current = self._publisher.is_current
        self._mode.is_withdrawn = is_current and self._publisher.offers_nothing
        self._mode.is_listed = is_current and self._is_registered and not self._rejected

    async def _ask_classic(self) -> None:
        before = self._classic.taken
        try:
            await self._classic.look()
        except HostError as error:
            self._log.debug(error.message)
            return
        if self._classic.taken != before:
            if self._classic.taken:
                count = len(self._classic.taken)
                self._log.warning(f"a device plugin has {count} devices: DRA does not offer these")
            self._offer()

    async def _serve(self) -> None:
        """Serve the kubelet on this driver's sockets, unless it does so already."""
        if self._endpoint.owns_sockets():
            return
        if self._endpoint.is_taken():
            raise HostError(
                "another instance of the driver has taken its sockets",
                hint="to run two pods of it on a node, set POD_UID of each from metadata.uid",
            )
        self._is_registered = False
        await self._endpoint.start()

    async def _reconcile(self) -> None:
        while True:
            try:
                await self._preparer.reconcile()
            except NvctError as error:
                self._log.error(error.message)
            await asyncio.sleep(RECONCILE_S)

    async def _find(self, ref: ClaimRef) -> Object | None:
        """Return a claim from the API server; None if it is gone, or another one has its name."""
        version = await self._publisher.find_version()
        found = await self._cluster.find(claims.kind(version), ref.name, ref.namespace)
        if found is None:  # the server also answers 404 if it lacks this version of the API
            await self._publisher.check_version(version)
        return found if found and found["metadata"]["uid"] == ref.uid else None

    def _known(self) -> list[str]:
        try:
            return [claim.full_name for claim in self._journal.load().values()]
        except NvctError:
            return []
