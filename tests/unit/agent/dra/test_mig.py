# SPDX-License-Identifier: Apache-2.0
"""MIG devices: those that exist, and those that are made for claims on a simulated node."""

import asyncio
import contextlib
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.device_plugin import specs
from nvct.agent.dra import gather, slices
from nvct.agent.dra.devices import MIB, Machine, Offer, Place
from nvct.agent.dra.instances import Instances, key
from nvct.agent.dra.mig_devices import offer
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml.client import ReleasedError
from nvct.host.nvml.mig_model import MigGpu
from nvct_sim import tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_kubelet import RefusedError
from tests.unit.agent.dra.test_prepare import CLAIM
from tests.unit.agent.dra.test_slices import NODE
from tests.unit.agent.dra.test_task import Lab, new_driver, settings
from tests.unit.agent.machines import discovery

SMALL = "gpu-1-mig-1g10gb-19-{}"
HALF = "gpu-1-mig-3g40gb-9-4"
LOG = Log(target=io.StringIO())
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")


@contextlib.contextmanager
def discovered(folder: Path) -> Iterator[Discovery]:
    """A node with two A100 in MIG mode: gpu-0 with three MIG devices, gpu-1 without."""
    node = tree.create("dra", "mixed", folder, nodes="plain", native_cache=CACHE)
    try:
        with discovery(node) as found:
            yield found
    finally:
        tree.destroy(node)


@pytest.fixture
def lab(tmp_path: Path, folder: Path) -> Iterator[Lab]:
    with discovered(tmp_path) as found:
        yield Lab(found, folder)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """Return the node as it is without claims."""
    with discovered(tmp_path_factory.mktemp("nodes")) as found:
        return asyncio.run(gather.machine(found))


def test_devices_that_exist_have_the_incumbents_names_and_sizes(machine: Machine) -> None:
    found = offer(machine, {}, on_demand=False)

    assert found.counters == {}
    assert sorted(device.name for device in found.devices if "mig" in device.name) == [
        "gpu-0-mig-1g10gb-me-20-6", "gpu-0-mig-2g20gb-14-4", "gpu-0-mig-3g40gb-9-0",
    ]  # fmt: skip
    half = next(device for device in found.devices if "3g40gb" in device.name)
    assert half.uuid.startswith("MIG-")
    assert half.attributes["uuid"] == half.uuid
    assert half.attributes["parentUUID"] == half.gpu
    assert (half.attributes["type"], half.attributes["profile"]) == ("mig", "3g.40gb")
    assert half.capacity["memory"] == 40192 * MIB
    assert half.capacity["multiprocessors"] == 42
    assert [name for name in half.capacity if name.startswith("memorySlice")] == [
        f"memorySlice{number}" for number in range(4)
    ]


def test_what_somebody_else_has_made_stays_and_keeps_its_place(machine: Machine) -> None:
    found = offer(machine, {}, on_demand=True)

    # 3g.40gb, 2g.20gb and 1g.10gb+me fill seven of eight memory slices.
    of_first = [device for device in found.devices if device.name.startswith("gpu-0-")]
    assert [device.uuid[:4] for device in of_first] == ["MIG-"] * 3
    assert list(found.counters) == ["gpu-1-counter-set"]


def test_slices_have_counters_or_devices_and_not_too_many(machine: Machine) -> None:
    found = offer(machine, {}, on_demand=True)
    devices = [device for device in found.devices if device.name.startswith("gpu-1-")]
    many = Offer(
        devices=tuple(devices) * 8,
        counters={f"set-{number}": found.counters["gpu-1-counter-set"] for number in range(9)},
    )

    changes = slices.changes([], slices.contents(many, "v1"), NODE)

    specs = [manifest["spec"] for manifest in changes.apply]
    sizes = [(len(spec.get("sharedCounters", ())), len(spec.get("devices", ()))) for spec in specs]
    assert sizes == [(8, 0), (1, 0), (0, 64), (0, 64), (0, 64), (0, 8)]
    assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {6}
    (taken,) = specs[2]["devices"][0]["consumesCounters"]
    assert taken["counterSet"] == "gpu-1-counter-set"
    assert taken["counters"] == {"memory-slice-0": {"value": "1"}}
    assert (
        slices.changes(list(changes.apply), slices.contents(many, "v1"), NODE) == slices.Changes()
    )


async def second(lab: Lab) -> MigGpu:
    return next(gpu for gpu in (await lab.machine.nvml.mig()).gpus if gpu.minor == 1)


async def instances(lab: Lab) -> list[tuple[int, int]]:
    """Return the places on the second GPU that are taken."""
    state = await second(lab)
    return sorted((each.placement.start, each.placement.size) for each in state.instances)


def spec_of(lab: Lab, uid: str) -> list[str]:
    path = lab.folder / f"cdi/k8s.gpu.nvidia.com-claim_{uid}.json"
    (device,) = json.loads(path.read_text())["devices"]
    return [node["path"] for node in device["containerEdits"]["deviceNodes"]]


@needs_root
async def test_a_mig_device_is_made_for_a_claim_and_destroyed_after_it(lab: Lab) -> None:
    async with lab.running(mig="on-demand") as made:
        await until(lambda: SMALL.format(0) in lab.offered())
        written = len(lab.api.writes)
        small, half = lab.allocate("small", SMALL.format(2)), lab.allocate("half", HALF)
        for claim in (small, half, small):
            await lab.kubelet.prepare(claim)
        assert await instances(lab) == [(2, 1), (4, 4)]
        log = made._log.target
        assert isinstance(log, io.StringIO)
        assert re.search(r"/half \([0-9a-f-]{36}\) has \S+ \(MIG-[0-9a-f-]{36}\)", log.getvalue())
        nodes = spec_of(lab, small.uid)
        assert "/dev/nvidia1" in nodes
        assert len([path for path in nodes if "nvidia-cap" in path]) == 2
        with pytest.raises(RefusedError):  # the scheduler would not do this
            await lab.kubelet.prepare(lab.allocate("same", SMALL.format(5)))
        await lab.kubelet.unprepare(half)
        assert await instances(lab) == [(2, 1)]
        await asyncio.sleep(0.3)  # it looks at the machine in between
        assert len(lab.api.writes) == written
        await lab.kubelet.prepare(lab.allocate("gone", SMALL.format(0)))
        assert await instances(lab) == [(0, 1), (2, 1)]
    # A new process finds the instance of a claim that is gone, and one that a boot has taken.
    lab.api.remove(CLAIM, "gone", "ns")
    await destroy_all(lab)
    async with lab.running(mig="on-demand") as made:
        await until(lambda: made.describe()[0]["claims"] == ["ns/small"])
        await until((lab.folder / f"cdi/k8s.gpu.nvidia.com-claim_{small.uid}.json").exists)
        assert await instances(lab) == [(2, 1)]


@needs_root
async def test_a_claim_ends_also_while_the_driver_is_let_go(lab: Lab) -> None:
    """NVIDIA's driver manager evicts the pods that have claims after it has paused the labels."""
    nvml = lab.machine.nvml
    async with lab.running(mig="on-demand"):
        await until(lambda: HALF in lab.offered())
        half = lab.allocate("half", HALF)
        await lab.kubelet.prepare(half)
        await nvml.let_go("the driver is being replaced: a test says so")
        try:
            await lab.kubelet.unprepare(half)
            assert not nvml.is_let_go  # it has to be closed once more
            with pytest.raises(ReleasedError):
                await nvml.report()
            await nvml.let_go(nvml.refusal)
            assert nvml.is_let_go
        finally:
            nvml.refusal = ""
        assert await instances(lab) == []


async def destroy_all(lab: Lab) -> None:
    """Destroy the instances of the second GPU, as a boot does."""
    gpu, call = await second(lab), lab.machine.nvml.call
    for each in gpu.instances:
        ids: dict[str, Any] = {"uuid": gpu.uuid, "gi": each.id}
        for compute in each.compute:
            await call("mig_destroy_compute", NoneType, {**ids, "ci": compute.id})
        await call("mig_destroy", NoneType, ids)


@needs_root
async def test_an_older_look_at_the_machine_does_not_come_after_a_newer_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The periodic look has read NVML's state of before a device was made for a claim."""
    has_begun, may_end = threading.Event(), threading.Event()
    gpus = specs.gpus

    def slow(*args: Any, **more: Any) -> Any:
        if not has_begun.is_set():
            has_begun.set()
            may_end.wait(10)
        return gpus(*args, **more)

    monkeypatch.setattr(specs, "gpus", slow)

    made = new_driver(lab.api, lab.machine, settings(lab.folder, mig="on-demand"))
    periodic = asyncio.create_task(made._update())
    await until(has_begun.is_set)
    gpu = await second(lab)
    place, instances = Place(0, 2, 1, 0), Instances(lab.machine.nvml, made._look_at_mig, LOG)

    async def make() -> str:
        await instances.make(gpu.uuid, place)
        return (await instances.uuids())[key(gpu.uuid, place)]

    made_for_claim = asyncio.create_task(make())
    await asyncio.wait([made_for_claim], timeout=1)
    may_end.set()
    await periodic
    assert await made_for_claim in (made._specs._files._side.edits or {})


async def test_without_shared_counters_the_devices_that_exist_are_offered(lab: Lab) -> None:
    lab.api.drops = {"sharedCounters", "consumesCounters"}
    async with lab.running(mig="on-demand") as made:
        await until(lambda: len(lab.offered()) == 3 + 3)
        await until(lambda: made.describe()[0]["reason"] == "")
        assert not any(name.startswith("gpu-1-") for name in lab.offered())


def test_claims_keep_their_place_from_being_offered_as_existing(machine: Machine) -> None:
    first = next(gpu for gpu in machine.mig.values() if gpu.minor == 0)
    claimed = {first.uuid: [Place(each.kind, *each.placement, 0) for each in first.instances]}

    static = offer(machine, claimed, on_demand=False)
    assert [device.name for device in static.devices] == ["gpu-3", "gpu-4", "gpu-2"]
    assert set(offer(machine, claimed, on_demand=True).counters) == {
        "gpu-0-counter-set", "gpu-1-counter-set",
    }  # fmt: skip
