# SPDX-License-Identifier: Apache-2.0
"""The choice among free devices: it never fails, and is the same each time."""

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvct.agent.device_plugin.allocate import check
from nvct.agent.device_plugin.preferred import preferred, scores
from nvct.agent.device_plugin.resources import GPU, Device, Resource
from nvct.agent.device_plugin.settings import Settings
from nvct.errors import RequestError
from nvct.host.nvml.model import GpuLink

LARGEST = 16


def whole(count: int) -> Resource:
    devices = [
        Device(id=f"GPU-{n}", uuid=f"GPU-{n}", gpu=f"GPU-{n}", index=str(n)) for n in range(count)
    ]
    return Resource(name=GPU, devices={device.id: device for device in devices})


def shared(gpus: int, replicas: int) -> Resource:
    devices = [
        Device(
            id=f"GPU-{n}::{r}", uuid=f"GPU-{n}", gpu=f"GPU-{n}", index=str(n), is_replica=True
        )
        for n in range(gpus)
        for r in range(replicas)
    ]  # fmt: skip
    return Resource(name=GPU, devices={device.id: device for device in devices})


def small(gpus: int, instances: int) -> Resource:
    devices = [
        Device(
            id=f"MIG-{n}-{i}", uuid=f"MIG-{n}-{i}", gpu=f"GPU-{n}", index=f"{n}:{i}",
            instance=(i, 0),
        )
        for n in range(gpus)
        for i in range(instances)
    ]  # fmt: skip
    return Resource(name=GPU, devices={device.id: device for device in devices})


RESOURCES = st.one_of(
    st.builds(whole, st.integers(0, LARGEST)),
    st.builds(shared, st.integers(1, 4), st.integers(2, 4)),
    st.builds(small, st.integers(1, 4), st.integers(1, 7)),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Resource, list[str], list[str], int, list[GpuLink]]:
    resource = draw(RESOURCES)
    words = st.sampled_from([*resource.devices, "unknown"])
    free = draw(st.lists(words, unique=True))
    links = draw(
        st.lists(
            st.builds(
                GpuLink,
                gpus=st.tuples(
                    st.sampled_from(["GPU-0", "GPU-1", "GPU-2", "x"]),
                    st.sampled_from(["GPU-1", "GPU-3", "GPU-4"]),
                ),
                ancestor=st.sampled_from([-1, 0, 10, 50, 99]),
                nvlinks=st.integers(0, 4),
            ),
            max_size=4,
        )
    )
    return resource, free, draw(st.lists(words, max_size=3)), draw(st.integers(-1, 20)), links


@given(requests())
def test_the_answer_has_the_size_and_the_required_or_is_empty(
    asked: tuple[Resource, list[str], list[str], int, list[GpuLink]],
) -> None:
    resource, free, must, size, links = asked
    table = scores(links)

    chosen = preferred(resource, free, must, size, table)

    assert chosen == preferred(resource, free[::-1], must, size, table) or must
    known = [id_ for id_ in dict.fromkeys(must) if id_ in resource.devices]
    possible = {*free, *must} & resource.devices.keys()
    assert set(chosen) <= possible
    assert len(chosen) == len(set(chosen)) == (size if 0 < size <= len(possible) else 0)
    if chosen:
        assert set(known[:size]) <= set(chosen)


SHARED, SMALL = shared(3, 3), small(2, 3)
"""The incumbent counts each MIG device as a GPU, so its choice is chance."""


@pytest.mark.parametrize(
    ("resource", "given", "must", "policy", "chosen"),
    [
        (SHARED, ["GPU-0::0", "GPU-0::1", "GPU-1::0"], [], "", ["GPU-2::0", "GPU-1::1"]),
        (SHARED, ["GPU-0::0", "GPU-0::1", "GPU-1::0"], [], "packed", ["GPU-0::2", "GPU-1::1"]),
        (SMALL, ["MIG-0-0"], [], "", ["MIG-1-0", "MIG-0-1"]),
        (SMALL, ["MIG-0-0"], [], "packed", ["MIG-0-1", "MIG-0-2"]),
        # Replicas of as many GPUs as there are, also where one is used more.
        (shared(2, 3), ["GPU-1::0", "GPU-1::1"], [], "distinct", ["GPU-0::0", "GPU-1::2"]),
        (shared(2, 3), ["GPU-1::0", "GPU-1::1"], ["GPU-1::2"], "distinct",
         ["GPU-1::2", "GPU-0::0"]),
        (shared(2, 3), ["GPU-1::0", "GPU-1::1"], [], "distributed", ["GPU-0::0", "GPU-0::1"]),
    ],
)  # fmt: skip
def test_two_devices_are_chosen_by_a_policy(
    resource: Resource, given: list[str], must: list[str], policy: str, chosen: list[str]
) -> None:
    free = [id_ for id_ in resource.devices if id_ not in given]
    more = {"policy": policy} if policy else {}

    assert preferred(resource, free, must, 2, {}, **more) == chosen


def test_sixteen_gpus_in_two_boards_stay_on_one_board_in_no_time() -> None:
    pairs = [(a, b) for a in range(LARGEST) for b in range(a)]
    table = scores(
        GpuLink(gpus=(f"GPU-{a}", f"GPU-{b}"), ancestor=10 if a // 8 == b // 8 else 50, nvlinks=0)
        for a, b in pairs
    )
    resource = whole(LARGEST)
    free = [f"GPU-{n}" for n in range(LARGEST) if n != 3]

    began = time.process_time()
    chosen = preferred(resource, free, ["GPU-9"], 8, table)

    assert chosen == [f"GPU-{n}" for n in range(8, 16)]
    assert time.process_time() - began < 1


def test_two_replicas_of_one_gpu_are_refused_by_policy_distinct() -> None:
    resource = shared(2, 3)
    distinct = Settings(shared_devices_allocation_policy="distinct")

    check(resource, ["GPU-0::0", "GPU-1::0"], distinct)
    check(resource, ["GPU-0::0", "GPU-0::1"], Settings())
    with pytest.raises(RequestError, match="2 replicas need as many devices; found 1"):
        check(resource, ["GPU-0::0", "GPU-0::1"], distinct)


def test_thousands_of_replicas_are_chosen_at_once() -> None:
    resource = shared(2, 8192)
    began = time.process_time()

    chosen = preferred(resource, list(resource.devices), [], 8000, {})

    assert time.process_time() - began < 1
    assert Counter(resource.devices[id_].uuid for id_ in chosen) == {"GPU-0": 4000, "GPU-1": 4000}
