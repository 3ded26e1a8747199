# SPDX-License-Identifier: Apache-2.0
"""The driver on a simulated node, with a kubelet and an API server of tests."""

import asyncio
import contextlib
import io
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.core.resources_mode import CLASSIC, DRA, LABEL, ResourcesMode
from nvct.agent.dra import claims, slices, task
from nvct.agent.dra.classic import Classic
from nvct.agent.dra.devices import DRIVER, Device, Offer
from nvct.agent.dra.publisher import Publisher
from nvct.agent.dra.settings import Settings
from nvct.agent.dra.task import DraDriver
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.settings import resolve
from nvct.agent.kubelet import dra_service, service
from nvct.agent.kubelet.dra_service import ClaimRef
from nvct.agent.kubernetes.cluster import NODE, Kind, Object
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError, RequestError
from nvct_sim import tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import NAME, FakeApi
from tests.unit.agent.dra.fake_kubelet import FakeKubelet, RefusedError
from tests.unit.agent.dra.test_prepare import CLAIM, allocation, uid_of
from tests.unit.agent.machines import discovery

SLICES = slices.kind("v1").plural


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Discovery]:
    base = tmp_path_factory.mktemp("nodes")
    node = tree.create("dra", "t4-4", base, nodes="plain", native_cache=CACHE)
    try:
        with discovery(node) as found:
            yield found
    finally:
        tree.destroy(node)


def settings(folder: Path, pod_uid: str = "", mig: str = "existing", shares: str = "") -> Settings:
    return Settings(
        node_name=NAME, cdi_root=f"{folder}/cdi", registry=f"{folder}/registry",
        plugins=f"{folder}/plugins", pod_uid=pod_uid,
        mig=mig, memory_shares=shares,
    )  # fmt: skip


def new_driver(
    api: FakeApi, machine: Discovery, known: Settings, *,
    mode: ResourcesMode | None = None, excluded: Sequence[str] = (),
) -> DraDriver:  # fmt: skip
    log = Log(target=io.StringIO())
    return DraDriver(
        known, machine, lambda: cast("Any", api),
        HealthEngine(resolve("auto", "", "", {}), log), log,
        load=lambda: replace(known, excluded=tuple(excluded)), mode=mode,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def driver(
    api: FakeApi, machine: Discovery, folder: Path, pod_uid: str = "", *,
    mig: str = "existing", mode: ResourcesMode | None = None, excluded: Sequence[str] = (),
    shares: str = "",
) -> AsyncIterator[DraDriver]:  # fmt: skip
    machine.nvml._lock = asyncio.Lock()  # that of an older test may be bound to its event loop
    known = settings(folder, pod_uid, mig, shares)
    made = new_driver(api, machine, known, mode=mode, excluded=excluded)
    task = asyncio.create_task(made.run())
    kubelet = FakeKubelet(f"{folder}/registry")
    try:
        await until(lambda: task.done() or any(pod_uid in path for path in kubelet.sockets()))
        if task.done():
            task.result()
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await machine.nvml.report()  # a request in flight would leave its answer to the next test


class Lab:
    """A node of four T4, its API server and its kubelet."""

    def __init__(self, machine: Discovery, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self.api, self.kubelet = FakeApi(), FakeKubelet(f"{folder}/registry")

    @contextlib.asynccontextmanager
    async def running(self, pod_uid: str = "", **more: Any) -> AsyncIterator[DraDriver]:
        """Run the driver; its devices are offered, four or more, and the kubelet knows it."""
        async with driver(self.api, self.machine, self.folder, pod_uid, **more) as made:
            await until(lambda: len(self.offered()) >= 4)
            await self.kubelet.register()
            yield made

    async def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in (await self.machine.inventory()).gpus]

    def allocate(self, name: str, *devices: str) -> ClaimRef:
        return allocate(self.api, name, *devices)

    def offered(self) -> list[str]:
        return offered(self.api)

    def tainted(self) -> list[str]:
        found = [one for each in self.api.all(SLICES) for one in each["spec"].get("devices", ())]
        return [one["name"] for one in found if one.get("taints")]

    def label(self, **labels: str) -> None:
        (node,) = self.api.all(NODE.plural)
        self.api.put(NODE, {"metadata": {**node["metadata"], "labels": labels}})


@pytest.fixture
def lab(machine: Discovery, folder: Path) -> Lab:
    return Lab(machine, folder)


def allocate(api: FakeApi, name: str, *devices: str) -> ClaimRef:
    ref = ClaimRef("ns", name, uid_of(name))
    metadata = {"name": name, "namespace": "ns", "uid": ref.uid}
    api.put(CLAIM, {"metadata": metadata, "status": allocation(*devices)})
    return ref


def offered(api: FakeApi) -> list[str]:
    return [one["name"] for found in api.all(SLICES) for one in found["spec"].get("devices", ())]


async def test_claims_are_refused_while_the_driver_is_replaced_and_slices_stay(lab: Lab) -> None:
    reason, nvml = "the driver is being replaced: a test says so", lab.machine.nvml
    async with lab.running() as made:
        kept = lab.allocate("kept", "gpu-0")
        assert await lab.kubelet.prepare(kept)
        await nvml.let_go(reason)
        try:
            await until(lambda: len(lab.tainted()) == 4)
            with pytest.raises(RefusedError, match=reason):
                await lab.kubelet.prepare(lab.allocate("one", "gpu-2"))
            assert await lab.kubelet.prepare(kept)
            assert not made.problem.text
        finally:
            nvml.refusal = ""
        await until(lambda: lab.tainted() == [])
        assert await lab.kubelet.prepare(lab.allocate("one", "gpu-2"))


async def test_a_claim_waits_for_the_files_of_a_driver_that_was_replaced(lab: Lab) -> None:
    """Its devices may be healthy again before the machine was looked at."""
    async with lab.running() as made:
        written = lab.folder / "cdi/k8s.gpu.nvidia.com-driver.json"
        written.unlink()
        made._made, made._loaded = None, "580.1.1"  # as before another driver

        assert await lab.kubelet.prepare(lab.allocate("new", "gpu-1"))

        assert written.exists()


async def test_gpus_are_offered_when_their_xids_are_watched(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    begin, offer = HealthEngine.begin, Publisher.offer

    async def beginning(engine: HealthEngine, client: NvmlClient) -> None:
        await begin(engine, client)
        events.append("watched")

    def offering(publisher: Publisher, found: Offer) -> None:
        events.append("offered")
        offer(publisher, found)

    monkeypatch.setattr(HealthEngine, "begin", beginning)
    monkeypatch.setattr(Publisher, "offer", offering)

    async with lab.running():
        assert events[:2] == ["watched", "offered"]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_claim_of_a_simulated_gpu(version: str, lab: Lab) -> None:
    folder, kubelet = lab.folder, lab.kubelet
    kubelet.version = version
    async with driver(lab.api, lab.machine, folder, "uid-1") as made:
        assert kubelet.sockets() == [f"{folder}/registry/{DRIVER}-uid-1-reg.sock"]
        info = await kubelet.register()
        assert (info.name, info.endpoint) == (DRIVER, f"{folder}/plugins/{DRIVER}/dra-uid-1.sock")
        await until(lambda: lab.offered() == [f"gpu-{n}" for n in range(4)])
        claim = lab.allocate("one", "gpu-2")
        (device,) = await kubelet.prepare(claim)
        file = folder / f"cdi/k8s.gpu.nvidia.com-claim_{claim.uid}.json"
        spec = json.loads(file.read_text())
        (shown,) = spec["devices"]
        assert device.cdi[1] == f"{spec['kind']}={shown['name']}"
        nodes = [node["path"] for node in shown["containerEdits"]["deviceNodes"]]
        assert [path for path in nodes if path.startswith("/dev/nvidia")] == ["/dev/nvidia2"]
        common = json.loads((folder / "cdi/k8s.gpu.nvidia.com-driver.json").read_text())
        assert common["containerEdits"]["mounts"]
        (state,) = made.describe()
        assert (state["state"], state["claims"]) == ("listed", ["ns/one"])
        counted = {one.name: [s.value for s in one.samples] for one in made.metrics()}
        names = ("nvct_dra_prepared_total", "nvct_dra_slices_written_total", "nvct_dra_devices")
        assert [counted[name] for name in names] == [[1], [1], [4]]
        with pytest.raises(RefusedError, match="is prepared for claim ns/one"):
            await kubelet.prepare(lab.allocate("two", "gpu-2"))
        await kubelet.unprepare(claim)
        assert not file.exists()
        await asyncio.sleep(0.05)
        assert len(lab.api.writes) == 1
    assert kubelet.sockets() == []


async def test_claims_stay_while_the_server_lacks_the_version_of_the_api(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Api(FakeApi):
        async def find(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
            if f"{kind.group}/{kind.version}" in self.absent:
                asked.append(kind.version)
                return None  # as of an object that is gone
            return await super().find(kind, name, namespace)

    monkeypatch.setattr(task, "RECONCILE_S", 0.05)
    monkeypatch.setattr(claims, "TURN_S", 0.05)
    asked: list[str] = []
    lab.api = Api()

    async with lab.running() as made:
        await lab.kubelet.prepare(lab.allocate("one", "gpu-2"))
        lab.api.absent = {f"{slices.GROUP}/v1"}
        await until(lambda: asked and made.describe()[0]["api"] == "v1beta1")
        await asyncio.sleep(0.2)
        assert made.describe()[0]["claims"] == ["ns/one"]


async def test_a_killed_driver_is_followed_by_one_on_the_same_sockets(lab: Lab) -> None:
    for name in ("", "-uid-0"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{lab.folder}/registry/{DRIVER}{name}-reg.sock")
    async with driver(lab.api, lab.machine, lab.folder):
        await until(lambda: len(lab.kubelet.sockets()) == 1)
        await lab.kubelet.register()
        os.unlink(lab.kubelet.sockets()[0])  # somebody
        await until(lab.kubelet.sockets)
        await lab.kubelet.register()


async def test_two_pods_can_serve_during_an_update(lab: Lab) -> None:
    async with lab.running("older"):
        async with driver(lab.api, lab.machine, lab.folder, "newer"):
            assert len(lab.kubelet.sockets()) == 2
        await lab.kubelet.register()


@pytest.fixture
def foreign(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield a socket that another driver of the name will have."""
    monkeypatch.setattr(service, "IDENTIFY_S", 0.1)
    with socket.socket(socket.AF_UNIX) as other:
        yield other


async def test_another_driver_of_the_name_is_left_alone(lab: Lab, foreign: socket.socket) -> None:
    path = f"{lab.folder}/registry/{DRIVER}-reg.sock"
    foreign.bind(path)
    foreign.listen()
    with pytest.raises(HostError, match=r"another driver gpu\.nvidia\.com runs"):
        async with lab.running("uid-1"):
            pass
    assert lab.kubelet.sockets() == [path]


async def test_a_node_moves_from_another_driver_of_the_name(
    lab: Lab, foreign: socket.socket
) -> None:
    """Its slices go once it has gone, and not while it serves again.

    Names and sockets are those of NVIDIA's 0.5.0-dev (95932046), seen on 2026-11-27.
    """
    kind, api = slices.kind(slices.VERSIONS[0]), lab.api
    names = [f"00000-{DRIVER}-{end}" for end in ("llf42", "tdxcj")]
    async with lab.running("uid-1") as made:
        (own,) = api.all(SLICES)
        for name in names:
            api.put(kind, {**own, "metadata": {**own["metadata"], "name": name}})
        await until(lambda: len(api.all(SLICES)) == 1)
        foreign.bind(f"{lab.folder}/registry/{DRIVER}-reg.sock")
        foreign.listen()
        api.put(kind, {**own, "metadata": {**own["metadata"], "name": names[0]}})
        publisher = made._publisher
        await until(lambda: names[0] in publisher.problem.text)
        assert len(api.all(SLICES)) == 2


async def test_a_refused_registration_is_told(lab: Lab) -> None:
    async with lab.running() as made:
        await lab.kubelet.register("no such version")
        (state,) = made.describe()
        assert (state["state"], state["reason"]) == ("absent", "no such version")


async def test_a_label_of_the_node_moves_its_gpus_when_nobody_has_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet, mode, uuids = lab.kubelet, ResourcesMode(DRA), await lab.uuids()
    async with lab.running(mode=mode) as made:
        await until(lambda: mode.is_listed)
        with pytest.raises(RequestError, match="its GPUs are offered by DRA"):
            mode.grant(uuids[:1])
        claim = lab.allocate("stays", "gpu-2")
        await kubelet.prepare(claim)
        lab.label(**{LABEL: CLASSIC})
        await until(lambda: mode.plugin_state() == (True, frozenset(uuids[2:3])))
        assert lab.offered() == []
        assert made.describe()[0]["state"] == "withdrawn"
        with pytest.raises(RequestError, match=f"a claim has {uuids[2]}"):
            mode.grant([uuids[2]])
        mode.grant([uuids[0]])
        late = lab.allocate("late", "gpu-0")  # allocated just before the change
        with pytest.raises(RefusedError, match="has just given GPU-"):
            await kubelet.prepare(late)
        await kubelet.unprepare(claim)
        assert mode.plugin_state() == (True, frozenset())

        async def look() -> None:
            made._classic.taken = frozenset({uuids[0]})

        monkeypatch.setattr(made._classic, "look", look)
        lab.label(**{LABEL: DRA})
        await until(lambda: lab.offered() == ["gpu-1", "gpu-2", "gpu-3"])
        lab.label(**{LABEL: "both"})
        await until(lambda: "must be classic or dra, not 'both'" in mode.problem)
        assert mode.mode == DRA


async def test_excluded_gpus_are_not_offered_and_the_list_can_change(lab: Lab) -> None:
    excluded: list[str] = []
    async with lab.running(excluded=excluded) as made:
        excluded[:] = ["1"]
        made.reload.set()
        await until(lambda: lab.offered() == ["gpu-0", "gpu-2", "gpu-3"])
        with pytest.raises(RefusedError, match="has no device gpu-1 now"):
            await lab.kubelet.prepare(lab.allocate("one", "gpu-1"))
        excluded[:] = ["*"]
        made.reload.set()
        await until(lambda: lab.offered() == [])


@pytest.mark.parametrize("drops", [False, True], ids=["taint", "without taints"])
async def test_an_unhealthy_gpu_has_a_taint_or_is_not_offered(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, drops: bool
) -> None:
    lab.api.drops = {"taints"} if drops else set()
    uuids = await lab.uuids()
    async with lab.running() as made:
        problems = {uuids[2]: "XID 79"}
        monkeypatch.setattr(made._health, "problem", lambda gpu, _: problems.get(gpu, ""))
        await until(lambda: len(lab.offered()) == 3 if drops else lab.tainted() == ["gpu-2"])
        assert made.describe()[0]["unhealthy"] == problems
        written = len(lab.api.writes)
        await asyncio.sleep(0.3)
        assert len(lab.api.writes) == written
        problems.clear()
        await until(lambda: len(lab.offered()) == 4 and lab.tainted() == [])


async def test_the_kubelet_is_told_the_health_of_devices(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dra_service, "HEALTH_S", 0.05)
    uuids = await lab.uuids()
    async with lab.running() as made:
        stream = lab.kubelet.watch_health()
        problems: dict[str, str] = {}
        monkeypatch.setattr(made._health, "problem", lambda gpu, _: problems.get(gpu, ""))
        assert await anext(stream) == {f"gpu-{n}": "" for n in range(4)}
        problems[uuids[1]] = "XID 79: it has fallen off the bus"
        assert (await anext(stream))["gpu-1"] == problems[uuids[1]]
        problems.clear()
        assert set((await anext(stream)).values()) == {""}
        await stream.aclose()


def test_a_mig_device_of_a_device_plugin_takes_its_gpu() -> None:
    def device(uuid: str, gpu: str) -> Device:
        return Device(name=uuid.lower(), uuid=uuid, gpu=gpu, attributes={}, capacity={})

    pairs = (("MIG-0", "GPU-0"), ("MIG-1", "GPU-0"), ("GPU-1", "GPU-1"))
    known = Offer(devices=tuple(device(*pair) for pair in pairs))

    classic = Classic("")
    assert classic.of(known) == Offer(), "before the kubelet has answered"
    for taken in ("MIG-0", "GPU-0"):
        classic.taken = frozenset({taken})
        assert [one.uuid for one in classic.of(known).devices] == ["GPU-1"]
    classic.taken = frozenset()
    assert classic.of(known) == known
