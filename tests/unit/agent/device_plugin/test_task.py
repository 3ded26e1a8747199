# SPDX-License-Identifier: Apache-2.0
"""The device plugin follows its machine: a simulated node that changes, and a fake kubelet."""

import asyncio
import contextlib
import io
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import pytest

from nvct.agent.core.context import Shared
from nvct.agent.core.logs import Log
from nvct.agent.core.task import SETTLE_S
from nvct.agent.device_plugin import endpoint, mig_changes, mps_watch, served, task
from nvct.agent.device_plugin import settings as options
from nvct.agent.device_plugin.list_strategy import Engine
from nvct.agent.device_plugin.resources import GPU, Content
from nvct.agent.device_plugin.served import ServedResources, canceled
from nvct.agent.device_plugin.settings import VENDOR, Settings
from nvct.agent.health.store import Store
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.kubelet import service
from nvct.agent.machine.discovery import Discovery
from nvct.agent.mps.daemons import Daemon
from nvct.agent.nvml.client import ReleasedError
from nvct.errors import ContainerNotPossibleError, HostError
from nvct_sim import node_changes, tree
from tests.support.memory import in_memory
from tests.support.nvml_node import CACHE
from tests.unit.agent import machines
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet, until
from tests.unit.agent.device_plugin.test_published import publish
from tests.unit.agent.health import engines

SMALL = "nvidia.com/mig-1g.10gb"


class Lab:
    """A node, a kubelet and the plugin's settings; the plugin runs while `running` does."""

    def __init__(self, node: tree.Node, folder: str, discovery: Discovery) -> None:
        self.node = node
        self.kubelet = FakeKubelet(folder)
        self.discovery = discovery
        self.log = io.StringIO()
        self.words = [f"--kubelet-socket={self.kubelet.socket}"]
        self.config: dict[str, object] = {}
        self.health = engines.engine(log=Log(target=self.log))
        self.starts_mps = False
        self.engine: Engine | str = "the container engine cannot be asked"
        self.specs = Path(folder).parent / f"{Path(folder).name}.cdi"
        self._config_file = Path(folder).parent / f"{Path(folder).name}.json"

    async def ask_engine(self, _settings: Settings) -> Engine | str:
        return self.engine

    def settings(self) -> Settings:
        self._config_file.write_text(json.dumps(self.config))
        words = [*self.words, f"--config-file={self._config_file}"]
        return options.resolve(words, {})[0]

    def plugin(self, shared: Shared) -> task.DevicePlugin:
        return task.DevicePlugin(
            self.settings, lambda _: self.discovery, lambda _: self.health, Log(target=self.log),
            spec_folder=str(self.specs), starts_mps=self.starts_mps, ask_engine=self.ask_engine,
            hands_over=shared.hands_over, store=Store(f"{self.specs}.state", name=served.LAST),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self, gpus: int = 0) -> AsyncIterator[task.DevicePlugin]:
        """Run the plugin, which soon offers so many whole GPUs."""
        await self.kubelet.start()
        plugin = self.plugin(Shared())
        runs = asyncio.create_task(plugin.run())
        try:
            await until(lambda: len(self.kubelet.lists.get(GPU, ())) >= gpus)
            yield plugin
        finally:
            runs.cancel()
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await runs
            finally:
                await self.kubelet.stop()

    async def allocate(self, index: int) -> None:
        request = api.AllocateRequest()
        request.container_requests.add(devices_ids=[self.uuid(index)])
        await self.kubelet.call(GPU, "Allocate", request, api.AllocateResponse)

    def uuid(self, index: int) -> str:
        return tree.gpu_uuid(self.node.name, index)

    def unhealthy(self) -> set[str]:
        listed = self.kubelet.lists.get(GPU, {})
        return {id_ for id_, state in listed.items() if state != "Healthy"}


@pytest.fixture
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    try:
        with (
            in_memory(tmp_path_factory.mktemp("nodes")) as nodes,
            tempfile.TemporaryDirectory(dir="/tmp") as folder,
        ):
            node = tree.create("h100", "h100-mig", nodes, native_cache=CACHE)
            kubelet = Path(folder, "k")
            kubelet.mkdir()
            with machines.discovery(node) as discovery:
                yield Lab(node, str(kubelet), discovery)
            tree.destroy(node)
    except ContainerNotPossibleError as error:
        pytest.skip(error.message)


async def test_an_xid_makes_its_gpu_unhealthy_and_one_of_an_application_does_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    are_watched: list[bool] = []
    offer = ServedResources.offer

    def noted(served: ServedResources, contents: Iterable[Content]) -> None:
        are_watched.append("XID errors are watched from now on" in lab.log.getvalue())
        offer(served, contents)

    monkeypatch.setattr(ServedResources, "offer", noted)

    async with lab.running(8) as plugin:
        assert are_watched[0], "GPUs are offered whose XIDs nobody watches"
        node_changes.add_xid(lab.node, 1, 31, {})
        node_changes.add_xid(lab.node, 2, 79, {})
        await until(lambda: lab.unhealthy() == {lab.uuid(2)})
        await until(lambda: "XID 31 of" in lab.log.getvalue())
        metrics = {family.name: family for family in plugin.metrics()}
        offered = [s.value for s in metrics["nvct_device_plugin_devices"].samples]
        assert offered == [7, 1]
        (xids,) = metrics["nvct_device_plugin_xid_devices_total"].samples
        assert (xids.value, xids.labels) == (1, {"resource": GPU})
        plugin.reload.set()  # as after a repair
        await until(lambda: not lab.unhealthy())


async def test_a_device_that_waits_for_a_change_of_mig_is_withheld(lab: Lab) -> None:
    async with lab.running(8) as plugin:
        plugin._mig_changes._paused = {lab.uuid(0): ()}
        plugin._show_health()
        (entry,) = plugin.describe()
        assert entry["withheld"] == [lab.uuid(0)]
        assert entry["unhealthy"] == {lab.uuid(0): mig_changes.REASON}
        plugin._mig_changes._paused, plugin._mig_changes.ended = {}, {lab.uuid(0): ()}
        plugin._show_health()
        assert plugin.describe()[0]["unhealthy"] == {lab.uuid(0): mig_changes.REASON}
        await until(lambda: not plugin.describe()[0]["unhealthy"])  # it has looked


async def test_a_changed_config_file_does_not_make_a_failed_gpu_healthy(lab: Lab) -> None:
    """config-manager signals a change of the file, and nobody has repaired a GPU then."""
    async with lab.running(8) as plugin:
        node_changes.add_xid(lab.node, 2, 79, {})
        await until(lambda: lab.unhealthy() == {lab.uuid(2)})
        for version in ("v1", "v2"):
            lab.config = {"version": version}
            plugin.reload.set()
            await until(lambda: not plugin.reload.is_set())
            await asyncio.sleep(1)
            assert lab.unhealthy() == {lab.uuid(2)}
        lab.config = {"version": "v1"}
        plugin.reload.set()  # by somebody who has repaired it: the file is as before
        await until(lambda: not lab.unhealthy())


@pytest.mark.parametrize("disabled", ["", "all"], ids=["xids", "no xids"])
async def test_all_devices_are_unhealthy_while_nvml_hangs(disabled: str, lab: Lab) -> None:
    """Also where no XID counts."""
    env = {"DP_DISABLE_HEALTHCHECKS": disabled}
    lab.health = engines.engine(env, log=Log(target=lab.log))

    async with lab.running(8):
        await asyncio.sleep(SETTLE_S + 2)  # the look after the start is over
        node_changes.set_fault(lab.node, "hang", 60)
        began = time.monotonic()
        await until(lambda: len(lab.unhealthy()) == 8)
        assert time.monotonic() - began < 20  # the fault lasts a minute
        assert "NVML does not answer within 2 s" in lab.log.getvalue()
        node_changes.set_fault(lab.node, "hang", 0)
        await until(lambda: not lab.unhealthy())
        assert "NVML answers again" in lab.log.getvalue()


async def test_devices_stay_listed_as_unhealthy_while_the_driver_is_replaced(lab: Lab) -> None:
    reason = "the driver is being replaced: a test says so"
    nvml = lab.discovery.nvml

    async with lab.running(8) as plugin:
        with pytest.raises(HostError, match=r"module nvidia is in use by process \d+ \(nvct-"):
            node_changes.unload_module(lab.node)
        await nvml.let_go(reason)
        with pytest.raises(ReleasedError, match=reason):
            await nvml.report()
        await until(lambda: len(lab.unhealthy()) == 8)
        node_changes.unload_module(lab.node)  # nothing of the driver is open
        await asyncio.sleep(task.BROKEN_S + 1)
        assert len(lab.unhealthy()) == 8
        (entry,) = plugin.describe()
        assert set(entry["unhealthy"].values()) == {reason}  # type: ignore[attr-defined]
        with pytest.raises(grpc.RpcError, match=reason):
            await lab.allocate(0)
        await lab.kubelet.stop()
        await lab.kubelet.start()
        await until(lambda: len(lab.unhealthy()) == 8)
        assert not lab.health.describe()["notices"]
        node_changes.reload_module(lab.node)
        began = time.monotonic()
        nvml.refusal = ""
        await until(lambda: not lab.unhealthy())
        assert time.monotonic() - began < task.RETRY_S
        assert len(lab.kubelet.lists[GPU]) == 8


@pytest.mark.parametrize("content", ["", '{"resources": 7}'])
async def test_one_that_starts_while_the_driver_is_replaced_lists_what_was_there_as_unhealthy(
    content: str, lab: Lab
) -> None:
    reason, nvml = "the driver is being replaced: a test says so", lab.discovery.nvml
    file = Path(f"{lab.specs}.state") / served.LAST

    async with lab.running(8):
        pass
    if content:  # of somebody else
        file.write_text(content)
    lab.kubelet.lists.clear()
    await nvml.let_go(reason)
    node_changes.unload_module(lab.node)
    async with lab.running() as plugin:
        if content:
            await until(lambda: any(e["reason"] == reason for e in plugin.describe()))
            assert GPU not in lab.kubelet.lists
        else:
            await until(lambda: len(lab.unhealthy()) == 8)
            (entry,) = plugin.describe()
            assert set(entry["unhealthy"].values()) == {reason}  # type: ignore[attr-defined]
            with pytest.raises(grpc.RpcError, match=reason):
                await lab.allocate(0)
        node_changes.reload_module(lab.node)
        nvml.refusal = ""
        await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == 8 and not lab.unhealthy())


def test_a_plugin_that_fails_serves_nothing_until_it_is_started_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would watch the health of what it offers."""
    socket = Path(lab.kubelet.folder, "nvidia-gpu.sock")
    ended: list[bool] = []

    def fails() -> tuple[object, ...]:
        raise RuntimeError("a defect")

    async def run() -> None:
        async with lab.running():
            await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == 8)
            monkeypatch.setattr(lab.discovery, "signature", fails)
            await until(lambda: not socket.exists(), 10)
            await until(lambda: GPU not in lab.kubelet.lists)
            ended.append(True)

    with contextlib.suppress(RuntimeError):  # its own, unless it is canceled before
        asyncio.run(run())
    assert ended


@pytest.mark.parametrize("comes", [True, False], ids=["it-comes", "it-does-not"])
async def test_the_kubelet_has_the_devices_until_another_agent_offers_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, comes: bool
) -> None:
    monkeypatch.setattr(served, "HAND_OVER_S", 30.0 if comes else 0.5)

    await lab.kubelet.start()
    shared = Shared(has_successor=True)
    older, newer = lab.plugin(shared), lab.plugin(Shared())
    first = asyncio.create_task(older.run())
    await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == 8)
    await canceled(first)
    await asyncio.sleep(0.2)
    assert len(lab.kubelet.lists[GPU]) == 8
    second = asyncio.create_task(newer.run() if comes else asyncio.sleep(60))
    if comes:
        await until(lambda: len(lab.kubelet.registered) > 1)
    await until(lambda: not shared.handing)
    await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == (8 if comes else 0))
    await canceled(second)
    await lab.kubelet.stop()
    assert ("no other agent offers the devices" in lab.log.getvalue()) == (not comes)
    assert "another process has taken" not in lab.log.getvalue()


async def test_mig_devices_come_and_go_without_a_restart(
    lab: Lab, unresolvable: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.agent.device_plugin.registration.WITHDRAWN_S", 1.0)
    lab.words.append("--mig-strategy=mixed")

    async with lab.running(7) as plugin:
        await until(lambda: len(lab.kubelet.lists.get(SMALL, ())) == 7)
        node_changes.set_mig_mode(lab.node, 0, on=True)
        node_changes.create_instance(lab.node, 0, "3g.40gb")
        await until(lambda: len(lab.kubelet.lists.get("nvidia.com/mig-3g.40gb", ())) == 1)
        await until(lambda: len(lab.kubelet.lists[GPU]) == 6)
        node_changes.set_mig_mode(lab.node, 0, on=False)
        await until(lambda: lab.kubelet.lists.get("nvidia.com/mig-3g.40gb") == {})
        await until(lambda: len(lab.kubelet.lists[GPU]) == 7)
        assert set(plugin.registrations) == {GPU, SMALL}
        gone = {entry["resource"]: entry["state"] for entry in plugin.describe()}
        assert gone["nvidia.com/mig-3g.40gb"] == "withdrawn"
        await until(lambda: "nvidia.com/mig-3g.40gb" not in lab.kubelet.lists)
        assert {entry["resource"] for entry in plugin.describe()} == {GPU, SMALL}
    assert unresolvable == []


async def test_a_signal_has_the_settings_read_again(lab: Lab) -> None:
    async with lab.running(8) as plugin:
        rule = {"name": GPU, "replicas": 3}
        lab.config = {"sharing": {"timeSlicing": {"resources": [rule]}}}
        plugin.reload.set()
        await until(lambda: len(lab.kubelet.lists[GPU]) == 24)
        lab.config = {"version": "v2"}
        plugin.reload.set()
        await until(lambda: "the settings stay as they were" in lab.log.getvalue())
        assert len(lab.kubelet.lists[GPU]) == 24


async def test_a_specification_that_is_published_or_withdrawn_is_followed(lab: Lab) -> None:
    lab.words.append("--device-list-strategy=cdi-cri")
    lab.specs.mkdir()

    def mounts() -> int:
        spec = json.loads((lab.specs / f"{VENDOR}-gpu.json").read_text())
        return len(spec["containerEdits"]["mounts"])

    async with lab.running(8):
        assert mounts() > 5
        report = await lab.discovery.nvml.report()
        path = publish(lab.specs, report.driver_version)
        await until(lambda: mounts() == 2)
        await until(lambda: f"by one view, as in {path}" in lab.log.getvalue())
        path.unlink()
        await until(lambda: mounts() > 5)


async def test_a_container_waits_for_the_files_of_a_driver_that_was_replaced(lab: Lab) -> None:
    """Its devices may be healthy again before the machine was looked at."""
    lab.words.append("--device-list-strategy=cdi-cri")
    lab.specs.mkdir()
    async with lab.running(8) as plugin:
        written = lab.specs / f"{VENDOR}-gpu.json"
        written.unlink()
        plugin._offered, plugin._loaded = None, "580.1.1"  # as before another driver

        await lab.allocate(2)

        assert written.exists()


@pytest.fixture
def unresolvable(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the CDI names that were listed as healthy when no specification had them."""
    names: list[str] = []
    listing = endpoint.listing

    def noted(content: Content) -> api.ListAndWatchResponse:
        response = listing(content)
        spec = json.loads((lab.specs / f"{VENDOR}-gpu.json").read_text())
        written = {device["name"] for device in spec["devices"]}
        healthy = {device.ID for device in response.devices if device.health == service.HEALTHY}
        names.extend(healthy - written)
        return response

    monkeypatch.setattr(endpoint, "listing", noted)
    lab.words.append("--device-list-strategy=cdi-cri")
    lab.specs.mkdir()
    return names


async def test_a_gpu_that_no_specification_has_is_unhealthy(
    lab: Lab, unresolvable: list[str]
) -> None:
    """In MIG mode it has no CDI device, and strategy none offers it."""

    async with lab.running(8) as plugin:
        (in_mig_mode,) = lab.unhealthy()
        reason = f"no CDI specification has {VENDOR}/gpu={in_mig_mode}; if the GPU is in MIG"
        assert plugin.describe()[0]["unhealthy"][in_mig_mode].startswith(reason)  # type: ignore[index]
        node_changes.set_mig_mode(lab.node, 1, on=True)
        node_changes.create_instance(lab.node, 1, "3g.40gb")
        await until(lambda: lab.unhealthy() == {in_mig_mode, lab.uuid(1)})
        node_changes.set_mig_mode(lab.node, 1, on=False)
        await until(lambda: lab.unhealthy() == {in_mig_mode})
    assert unresolvable == []


async def test_the_strategy_auto_is_resolved_and_told(lab: Lab) -> None:
    lab.words.append("--device-list-strategy=auto")

    async with lab.running(8) as plugin:
        (entry,) = plugin.describe()
        assert entry["strategy"] == "envvar"
        assert entry["strategy_reason"] == (
            "auto: the container engine cannot be asked;"
            " pods need the RuntimeClass nvidia unless nvidia is the default runtime"
        )
        assert "device list strategy envvar, auto: " in lab.log.getvalue()


async def test_nothing_is_offered_that_the_engine_ignores(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods would start without their GPUs. Once the engine has CDI, they are offered."""
    monkeypatch.setattr(task, "RETRY_S", 0.1)
    lab.words += ["--device-list-strategy=cdi-cri", "--fail-on-init-error=false"]
    engine = Engine(takes_cdi=False, evidence="containerd 1.6.20")
    lab.engine = engine

    async with lab.running() as plugin:
        await until(lambda: "the engine ignores CDI names" in str(plugin.describe()))
        (entry,) = plugin.describe()
        assert (entry["resource"], entry["state"]) == ("every resource", "absent")
        assert not lab.kubelet.lists
        lab.engine = replace(engine, takes_cdi=True)
        await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == 8, 5.0)


@dataclass
class Daemons:
    """MPS control daemons as the supervisor tells of them, in place of real ones."""

    state: dict[str, str]
    wanted: list[Daemon] = field(default_factory=list)

    async def mps(self, wanted: Iterable[Daemon], *, starts: bool) -> dict[str, str]:
        assert starts
        self.wanted = list(wanted)
        return {daemon.resource: self.state[daemon.resource] for daemon in self.wanted}


async def test_a_resource_shared_by_mps_is_offered_when_its_daemon_is_ready(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.words += ["--mps-root=/run/nvidia/mps", "--mig-strategy=none"]
    lab.config = {"sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 4}]}}}
    lab.starts_mps = True
    daemons = Daemons({GPU: "the program is missing"})
    monkeypatch.setattr(lab.discovery.nvml, "mps", daemons.mps)
    monkeypatch.setattr(mps_watch, "LOOK_S", 0.02)
    monkeypatch.setattr("nvct.agent.core.task.MACHINE_S", 0.05)

    async with lab.running() as plugin:
        await until(lambda: "the program is missing" in lab.log.getvalue())
        states = {entry["resource"]: entry["reason"] for entry in plugin.describe()}
        assert states == {GPU: "the program is missing"}
        assert not lab.kubelet.lists
        (daemon,) = daemons.wanted
        assert (daemon.limits["0"], daemon.percentage) == (20389, 25)

        daemons.state[GPU] = ""
        await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == 32)
        assert not lab.unhealthy()

        daemons.state[GPU] = "it has ended"
        await until(lambda: len(lab.unhealthy()) == 32)
        daemons.state[GPU] = ""
        await until(lambda: not lab.unhealthy())

        lab.config = {}
        plugin.reload.set()
        await until(lambda: len(lab.kubelet.lists[GPU]) == 8)
        await until(lambda: not daemons.wanted)


async def test_a_driver_that_comes_and_goes_is_followed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nvct.agent.device_plugin.registration.WITHDRAWN_S", 1.0)
    lab.words.append("--fail-on-init-error=false")
    driver = (lab.node.driver_root, lab.node.proc / "driver/nvidia")

    def hide(*, shown: bool) -> None:
        for path in driver:
            names = path, path.with_name("hidden")
            names[shown].rename(names[not shown])

    hide(shown=False)
    async with lab.running() as plugin:
        await until(lambda: "no libnvidia-ml.so.1 in" in lab.log.getvalue())
        (entry,) = plugin.describe()
        assert (entry["resource"], entry["state"]) == ("every resource", "absent")
        assert "no libnvidia-ml.so.1 in" in str(entry["reason"])
        for _ in range(2):
            hide(shown=True)
            await until(lambda: len(lab.kubelet.lists.get(GPU, ())) == 8, 5.0)
            hide(shown=False)
            await until(lambda: lab.kubelet.lists.get(GPU) == {}, 5.0)


def test_mig_devices_that_do_not_fit_the_strategy_end_the_program(lab: Lab) -> None:
    lab.words += ["--mig-strategy=single", "--fail-on-init-error=false"]
    plugin = task.DevicePlugin(
        lab.settings, lambda _: lab.discovery, lambda _: lab.health, Log(target=lab.log)
    )

    with pytest.raises(HostError, match="the same migEnabled value"):
        asyncio.run(plugin.run())
