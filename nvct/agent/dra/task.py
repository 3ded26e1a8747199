# SPDX-License-Identifier: Apache-2.0
"""The DRA driver: offers the GPUs of this machine as they are now, and prepares claims.

Level-triggered: after each change of the driver, of MIG devices or of a device plugin, the devices
are computed again, and slices and CDI specifications follow. While NVML or the API server does not
answer, what is prepared stays.
"""

from __future__ import annotations

import asyncio
import time

from nvct.agent.dra import claims, classic, gather
from nvct.agent.dra.devices import DRIVER, Offer
from nvct.agent.dra.endpoint import Endpoint
from nvct.agent.dra.instances import Instances
from nvct.agent.dra.journal import Journal
from nvct.agent.dra.offer import offer
from nvct.agent.dra.prepare import Preparer
from nvct.agent.dra.publisher import Publisher
from nvct.agent.dra.settings import ON_DEMAND
from nvct.agent.dra.specs import Specs
from nvct.agent.exposition import Family, Sample
from nvct.agent.nvml_client import SupervisorEndedError
from nvct.agent.waiting import until_set
from nvct.errors import DriverNotFoundError, HostError, NvctError
from nvct.host.model import Findings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from nvct.agent.cluster import Cluster, Object
    from nvct.agent.discovery import Discovery
    from nvct.agent.dra.devices import Device
    from nvct.agent.dra.settings import Settings
    from nvct.agent.health.board import Change
    from nvct.agent.health.engine import HealthEngine
    from nvct.agent.kubelet.dra_service import ClaimRef, PreparedDevice
    from nvct.agent.logs import Log
    from nvct.agent.nvml_client import NvmlClient
    from nvct.host.roots import Roots

MACHINE_S = 1.0
"""How often the machine is looked at: a few folders of procfs, two sockets."""
SETTLE_S = 2.0
"""Until the next look after a change: procfs may show it before NVML does."""
PERIOD_S = 30.0
"""Until the next look if nothing seems to have changed."""
RETRY_S = 10.0
"""Until the next look after a failure."""
CLASSIC_S = 10.0
"""How often the kubelet is asked for the devices of device plugins."""
RECONCILE_S = 60.0
PREFIX = "nvct_dra"


class DraDriver:
    """The task of the agent that serves dynamic resource allocation.

    Attributes:
        reload: set it to have the machine looked at again.
    """

    def __init__(
        self,
        settings: Settings,
        discovery: Discovery,
        connect: Callable[[], Cluster],
        health: HealthEngine,
        log: Log,
    ) -> None:
        """Do nothing yet.

        Args:
            settings: of the driver.
            discovery: of this machine.
            connect: returns the cluster.
            health: of this node's GPUs.
            log: for what happens.
        """
        self.reload = asyncio.Event()
        self._settings = settings
        self._discovery = discovery
        self._connect = connect
        self._health = health
        self._log = log
        self._specs = Specs(settings.cdi_root)
        self._journal = Journal(f"{settings.plugins}/{DRIVER}")
        self._preparer = Preparer(settings.node, self._journal, self._specs, self._find, log)
        if discovery.nvml.chooses_library:  # else it is in a container that cannot change MIG
            self._preparer.instances = Instances(discovery.nvml, self._look_at_mig, log)
        self._endpoint = Endpoint(self, settings.registry, settings.plugins, settings.pod_uid)
        self._classic = classic.Classic(settings.pod_resources)
        self._taken: frozenset[str] = frozenset()
        self._all = Offer()
        self._made: object = None
        self._cluster: Cluster | None = None
        self._publisher: Publisher | None = None
        self._is_registered = False
        self._rejected = self._problem = ""

    async def run(self) -> None:
        """Serve until canceled.

        Raises:
            NvctError: there is no access to the cluster, or another driver of this name is here.
        """
        self._cluster = self._connect()
        self._publisher = Publisher(self._cluster, self._settings.node, self._log)
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._follow(),
                self._publisher.run(),
                self._reconcile(),
                self._health.run(self._watched, self._note_health),
            )
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # none ends without an error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._endpoint.stop()
            await self._classic.close()
            await self._cluster.close()

    def describe(self) -> list[dict[str, object]]:
        """Return the state of the driver, as JSON data."""
        publisher = self._publisher
        offered = classic.without(self._all, self._taken)
        is_listed = self._is_registered and bool(publisher and publisher.is_current)
        reasons = (self._rejected, self._problem, publisher.problem if publisher else "")
        return [
            {
                "resource": DRIVER,
                "state": "listed" if is_listed else "absent" if self._rejected else "registering",
                "reason": next(filter(None, reasons), ""),
                "devices": len(offered.devices),
                "unhealthy": {one.uuid or one.name: one.unhealthy for one in self._unhealthy()},
                "of_device_plugins": len(self._all.devices) - len(offered.devices),
                "api": publisher.version if publisher else "",
                "slices_written": publisher.written if publisher else 0,
                "claims": [f"{one.namespace}/{one.name}" for one in self._known()],
            }
        ]

    def metrics(self) -> Iterator[Family]:
        """Yield the driver's own metrics."""
        offered = classic.without(self._all, self._taken)
        yield from self._health.metrics()
        yield Family(
            name=f"{PREFIX}_devices", help="Devices that are offered by ResourceSlices.",
            samples=(Sample(value=len(offered.devices)),),
        )  # fmt: skip
        counters = (
            ("prepared_total", "Claims that were prepared.", self._preparer.prepared),
            ("prepare_seconds_total", "How long these took.", self._preparer.took_s),
            ("failures_total", "Prepares that failed.", self._preparer.failures),
            (
                "slices_written_total", "ResourceSlices that were written or deleted.",
                self._publisher.written if self._publisher else 0,
            ),
        )  # fmt: skip
        for name, text, value in counters:
            yield Family(
                name=f"{PREFIX}_{name}", help=text, kind="counter", samples=(Sample(value=value),)
            )

    async def prepare(self, claim: ClaimRef) -> Sequence[PreparedDevice]:
        """Make the devices of a claim ready, for the kubelet.

        Raises:
            NvctError: see `Preparer.prepare`.
        """
        return await self._preparer.prepare(claim)

    async def unprepare(self, claim: ClaimRef) -> None:
        """Undo `prepare`, for the kubelet.

        Raises:
            NvctError: see `Preparer.unprepare`.
        """
        await self._preparer.unprepare(claim)

    def health(self) -> dict[tuple[str, str], str]:
        """Return why pods cannot have each device, for the kubelet, which shows it in pods."""
        marked = self._all.with_health(self._health.problem, drops=False)
        return {(self._settings.node, one.name): one.unhealthy for one in marked.devices}

    def registered(self, problem: str) -> None:
        """Take the kubelet's answer to the registration."""
        self._is_registered, self._rejected = not problem, problem
        if problem:
            self._log.error(f"the kubelet refuses driver {DRIVER}: {problem}")
        else:
            self._log.info(f"Registered DRA driver {DRIVER} with the kubelet")

    async def _follow(self) -> None:
        """Offer what there is, again after each change."""
        signature: object = None
        due = ask_at = 0.0
        while True:
            if self.reload.is_set():
                self.reload.clear()
                signature = None
            now = time.monotonic()
            if now >= ask_at:
                await self._ask_classic()
                ask_at = now + CLASSIC_S
            current = (*self._discovery.signature(), *self._published(), self._is_on_demand)
            if current != signature or now >= due:
                is_change, signature = current != signature, current
                is_found = await self._look()
                delay_s = SETTLE_S if is_change else PERIOD_S if is_found else RETRY_S
                due = time.monotonic() + delay_s
            await self._serve()
            self._offer()
            await until_set(self.reload, MACHINE_S)

    async def _look(self) -> bool:
        """Look at the machine; return whether its driver answers."""
        try:
            await self._update()
        except SupervisorEndedError:
            raise
        except NvctError as error:
            self._complain(error)
            if isinstance(error, DriverNotFoundError) and self._publisher is not None:
                self._made, self._all = None, Offer()
                self._publisher.offer(self._all)
            return False
        self._problem = ""
        return True

    async def _update(self) -> None:
        """Compute devices and CDI specifications, if the machine is not what it was.

        Raises:
            NvctError: there is no driver, or it does not answer.
        """
        if await self._read_machine():
            await self._preparer.write_specs()
        self._offer()

    async def _read_machine(self) -> bool:
        """Compute the offer and the CDI edits of devices; return whether the machine has changed.

        Raises:
            NvctError: there is no driver, or it does not answer.
        """
        machine = await gather.machine(self._discovery)
        made = machine, self._published(), self._is_on_demand
        if made == self._made:
            return False
        from nvct.agent.device_plugin import specs

        report = await self._discovery.nvml.report()
        found = await asyncio.to_thread(
            specs.gpus, self._settings.specs, self._discovery.roots, report,
            stat_node=self._discovery.stat_node, folder=self._settings.cdi_root,
        )  # fmt: skip
        for warning in (*machine.inventory.warnings, *found.warnings):
            self._log.warning(warning)
        self._specs.update(found.spec)
        self._all = offer(machine, self._journal.places(), on_demand=self._is_on_demand)
        self._preparer.devices = {device.name: device for device in self._all.devices}
        self._made = made
        return True

    @property
    def _is_on_demand(self) -> bool:
        lacks = self._publisher is not None and self._publisher.lacks_counters
        can_make = self._preparer.instances is not None
        return self._settings.mig == ON_DEMAND and can_make and not lacks

    async def _look_at_mig(self) -> dict[tuple[str, int], str]:
        """Make missing device nodes, and return the UUIDs of MIG devices by GPU and instance."""
        await asyncio.to_thread(make_mig_nodes, self._discovery.roots)
        await self._read_machine()
        inventory = await self._discovery.inventory()
        return {(gpu.uuid, mig.gi): mig.uuid for gpu in inventory.gpus for mig in gpu.mig}

    def _offer(self) -> None:
        if self._made is not None and self._publisher is not None:
            offered = classic.without(self._all, self._taken)
            drops = self._publisher.lacks_taints
            self._publisher.offer(offered.with_health(self._health.problem, drops=drops))

    def _watched(self) -> NvmlClient | None:
        return self._discovery.nvml if self._all.devices else None

    def _note_health(self, _changes: Iterable[Change]) -> None:
        self._offer()

    def _unhealthy(self) -> list[Device]:
        marked = self._all.with_health(self._health.problem, drops=False)
        return [device for device in marked.devices if device.unhealthy]

    def _published(self) -> tuple[object, ...]:
        """Return the signature of the node's own CDI specifications."""
        from nvct.agent.device_plugin import published

        return published.signature(self._settings.cdi_root)

    async def _ask_classic(self) -> None:
        try:
            taken = await self._classic.uuids()
        except HostError as error:
            self._log.debug(error.message)
            return
        if taken != self._taken:
            self._taken = taken
            if taken:
                self._log.warning(
                    f"a device plugin has {len(taken)} devices of this node: their GPUs are not "
                    "offered by ResourceSlices"
                )
            self._offer()

    async def _serve(self) -> None:
        """Serve the kubelet once the machine was looked at, on sockets of our own.

        Raises:
            HostError: another driver of this name is here.
        """
        if self._endpoint.owns_sockets():
            return
        if self._endpoint.is_taken():
            raise HostError(
                "another instance of the driver has taken its sockets",
                hint="two pods need POD_UID, from the field metadata.uid",
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
        """Return a claim as the API server has it; None if it is gone, or another has its name."""
        if self._cluster is None or self._publisher is None:
            raise HostError("the driver is not connected to the API server yet")
        version = await self._publisher.find_version()
        found = await self._cluster.find(claims.kind(version), ref.name, ref.namespace)
        if found is None:  # the server also answers 404 if it lacks this version of the API
            await self._publisher.check_version(version)
        return found if found and found["metadata"]["uid"] == ref.uid else None

    def _known(self) -> list[ClaimRef]:
        from nvct.agent.dra.journal import ref_of

        try:
            return [ref_of(claim) for claim in self._journal.load().values()]
        except NvctError:
            return []

    def _complain(self, error: NvctError) -> None:
        text = f"{error.message}{f' ({error.hint})' if error.hint else ''}"
        if text != self._problem:
            self._problem = text
            self._log.error(text)


def make_mig_nodes(roots: Roots) -> None:
    """Make the device nodes of MIG devices that lack one: no setuid program does it here.

    Raises:
        HostError: they cannot be made.
    """
    from nvct.host.device_nodes import create
    from nvct.kernel.calls import KERNEL

    create.make_nodes(create.plan_nodes(roots, ["cap"], Findings()), KERNEL)
