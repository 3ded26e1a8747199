# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices: their form, and that nothing is written where nothing has changed."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from nvct.agent.core.logs import Log
from nvct.agent.dra import publisher as publisher_module
from nvct.agent.dra import slices
from nvct.agent.dra.devices import DRIVER, MIB, Device, Offer, Version
from nvct.agent.dra.publisher import Publisher
from nvct.agent.kubernetes.cluster import FORBIDDEN, ClusterError, Object
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import NAME, FakeApi

NODE = {"metadata": {"name": NAME, "uid": "node-uid"}}
KIND = slices.kind("v1")


def device(number: int, **attributes: Any) -> Device:
    uuid = f"GPU-{number}"
    return Device(
        name=f"gpu-{number}", uuid=uuid, gpu=uuid, attributes={"uuid": uuid, **attributes},
        capacity={"memory": 81559 * MIB},
    )  # fmt: skip


def of(*devices: Device) -> Offer:
    return Offer(devices=devices)


def stored(changes: slices.Changes) -> list[Object]:
    return [{**one, "metadata": {**one["metadata"]}} for one in changes.apply]


def changed(found: list[Object], devices: list[Device], version: str = "v1") -> slices.Changes:
    return slices.changes(found, slices.contents(Offer(devices=tuple(devices)), version), NODE)


def test_a_device_has_the_form_of_the_api() -> None:
    attributes = {"version": Version("9.0.0"), "ecc": True, "numaNode": 0}

    (made,) = changed([], [device(0, **attributes)]).apply

    assert made["metadata"]["name"] == f"{NAME}-{DRIVER}-0"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", "node-uid", True)
    assert made["spec"] == {
        "driver": DRIVER,
        "nodeName": NAME,
        "pool": {"name": NAME, "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {
                    "uuid": {"string": "GPU-0"}, "version": {"version": "9.0.0"},
                    "ecc": {"bool": True}, "numaNode": {"int": 0},
                },
                "capacity": {"memory": {"value": "81559Mi"}},
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (7, "7"), (1000, "1000"), (1024, "1Ki"), (85899345920, "80Gi"),
        (85520809984, "81559Mi"), (3 << 60, "3Ei"), (2048 << 60, "2048Ei"),
    ],
)  # fmt: skip
def test_quantities_are_as_the_server_writes_them(number: int, text: str) -> None:
    assert slices.quantity(number) == text


def test_an_attribute_changes_in_place_and_a_device_with_the_generation() -> None:
    found = stored(changed([], [device(0), device(1)]))

    assert changed(found, [device(0), device(1)]) == slices.Changes()
    (attribute,) = changed(found, [device(0, ecc=False), device(1)]).apply
    assert attribute["spec"]["pool"]["generation"] == 1
    (fewer,) = changed(found, [device(0)]).apply
    assert fewer["spec"]["pool"]["generation"] == 2


def test_more_devices_than_a_slice_can_have() -> None:
    many = [device(number) for number in range(slices.SLICE_DEVICES + 1)]

    first = changed([], many)
    found = stored(first)
    second = changed(found, many[:1])

    assert [len(one["spec"]["devices"]) for one in first.apply] == [slices.SLICE_DEVICES, 1]
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in first.apply} == {2}
    assert second.delete == (f"{NAME}-{DRIVER}-1",)
    assert second.apply[0]["spec"]["pool"]["generation"] == 2
    assert changed(found, many) == slices.Changes()


def test_an_interrupted_write_is_finished_with_a_newer_generation() -> None:
    many = [device(number) for number in range(slices.SLICE_DEVICES + 1)]
    older = stored(changed([], many))
    half = [*stored(changed(older, many[:-1]))[:1], older[1]]

    assert [one["spec"]["pool"]["generation"] for one in changed(half, many).apply] == [3, 3]


def test_names_of_long_nodes_are_cut_and_differ() -> None:
    one, two = (slices.slice_name("n" * 252 + end, 0) for end in "ab")

    assert len(one) <= 253
    assert one != two


@contextlib.asynccontextmanager
async def publishing(api: FakeApi, *, is_alone: bool = False) -> AsyncIterator[Publisher]:
    async def answer() -> bool:
        return is_alone

    publisher = Publisher(cast("Any", api), NAME, Log(target=io.StringIO()), answer)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def shown(api: FakeApi) -> list[str]:
    return [one["name"] for found in api.all(KIND.plural) for one in found["spec"]["devices"]]


async def test_slices_are_written_once_and_again_after_a_wipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "APART_S", 0.01)

    api = FakeApi()
    async with publishing(api) as publisher:
        await asyncio.sleep(0)
        assert api.writes == []
        publisher.offer(of(device(0)))
        await until(lambda: shown(api) == ["gpu-0"])
        publisher.offer(of(device(0)))
        await asyncio.sleep(0.02)
        assert len(api.writes) == 1
        api.remove(KIND, f"{NAME}-{DRIVER}-0")  # the kubelet, when it starts
        await until(lambda: shown(api) == ["gpu-0"])
        publisher.offer(of(device(0), device(1)))
        await until(lambda: shown(api) == ["gpu-0", "gpu-1"])
        changed = api.all(KIND.plural)[0]
        changed["spec"]["devices"].pop()
        api.put(KIND, changed)  # somebody else
        await until(lambda: shown(api) == ["gpu-0", "gpu-1"])
        publisher.offer(of())
        await until(lambda: shown(api) == [])
        assert publisher.written == len(api.writes) == 5
    async with publishing(api) as publisher:
        publisher.offer(of())
        await asyncio.sleep(0.02)
        assert publisher.written == 0


async def test_two_drivers_that_do_not_agree_write_once_a_second() -> None:
    api = FakeApi()
    async with publishing(api) as older, publishing(api) as newer:
        older.offer(of(device(0)))
        newer.offer(of(device(0, ecc=True)))
        await asyncio.sleep(0.4)
        assert 2 <= len(api.writes) <= 4


async def test_the_slices_of_another_driver_are_left_alone() -> None:
    api = FakeApi()
    foreign = changed([], [device(0)]).apply[0]
    foreign["metadata"]["name"] = f"{NAME}-{DRIVER}-x7k2p"
    api.put(KIND, foreign)
    async with publishing(api) as publisher:
        publisher.offer(of(device(0), device(1)))
        await until(lambda: "another driver" in publisher.problem.text)
        assert "x7k2p" in publisher.problem.text
        assert api.writes == []


async def test_the_slices_of_a_driver_that_has_gone_are_deleted() -> None:
    """The kubelet would keep them: a driver of their name is registered."""
    api = FakeApi()
    foreign = changed([], [device(0)]).apply[0]
    foreign["metadata"]["name"] = f"{NAME}-{DRIVER}-x7k2p"
    api.put(KIND, foreign)
    async with publishing(api, is_alone=True) as publisher:
        publisher.offer(of(device(0), device(1)))
        await until(lambda: shown(api) == ["gpu-0", "gpu-1"])
        (found,) = api.all(KIND.plural)
        assert found["metadata"]["name"] == f"{NAME}-{DRIVER}-0"


async def test_an_older_server_has_the_older_api() -> None:
    api = FakeApi()
    api.absent = {"resource.k8s.io/v1"}
    async with publishing(api) as publisher:
        publisher.offer(of(device(0)))
        await until(lambda: shown(api) == ["gpu-0"])
        assert publisher.version == "v1beta1"
        assert "basic" in api.all(KIND.plural)[0]["spec"]["devices"][0]


async def test_a_server_without_the_api_is_named() -> None:
    api = FakeApi()
    api.absent = {"resource.k8s.io/v1", "resource.k8s.io/v1beta1"}
    async with publishing(api) as publisher:
        publisher.offer(of(device(0)))
        await until(lambda: "needs Kubernetes 1.32" in publisher.problem.text)


async def test_a_missing_right_is_named() -> None:
    api = FakeApi()
    api.refuses = ClusterError("may not patch resourceslices", status=FORBIDDEN)
    async with publishing(api) as publisher:
        publisher.offer(of(device(0)))
        await until(lambda: publisher.problem.text == "may not patch resourceslices")
        api.refuses = None
        publisher.offer(of(device(1)))  # no wait for the back-off
        await until(lambda: shown(api) == ["gpu-1"])
        assert publisher.problem.text == ""


@pytest.mark.parametrize(
    ("unhealthy", "xid", "taint"),
    [
        ("XID 79 (GPU has fallen off the bus); reboot the node", 0, ("xid", "79", "NoSchedule")),
        ("on probation after flapping: it came back 3 times in an hour; XID 48", 13,
         ("xid", "48", "NoSchedule")),
        ("the GPU is lost (GPU is lost); reboot the node", 0, ("gpu-lost", "", "NoSchedule")),
        ("a row of the memory cannot be remapped", 0, ("unhealthy", "", "NoSchedule")),
        ("", 13, ("xid", "13", "None")),
    ],
)  # fmt: skip
def test_a_taint_says_what_happened_as_nvidias_driver_does(
    unhealthy: str, xid: int, taint: tuple[str, str, str]
) -> None:
    offer = of(device(0)).with_health(lambda *_: unhealthy, lambda *_: xid, drops=False)
    (content,) = slices.contents(offer, "v1")
    (found,) = content["devices"][0]["taints"]
    assert (found["key"], found.get("value", ""), found["effect"]) == (
        f"gpu.nvidia.com/{taint[0]}", *taint[1:]
    )  # fmt: skip
    assert slices.contents(offer.with_health(lambda *_: "", drops=False), "v1") == (
        slices.contents(of(device(0)), "v1")
    )


async def test_an_api_server_that_refuses_taints_without_effect_gets_none() -> None:
    api = FakeApi()
    marked = of(device(0)).with_health(lambda *_: "", lambda *_: 13, drops=False)
    apply = api.apply

    async def old_apply(kind: Any, manifest: Object, manager: str, part: str = "") -> Object:
        if "taints" in manifest["spec"]["devices"][0]:
            raise ClusterError("effect: Unsupported value", status=422)
        return await apply(kind, manifest, manager, part)

    api.apply = old_apply  # type: ignore[method-assign]
    async with publishing(api) as publisher:
        publisher.offer(marked)
        await until(lambda: publisher.lacks_marks)
        publisher.offer(of(device(0)))
        await until(lambda: publisher.is_current)
