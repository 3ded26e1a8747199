# SPDX-License-Identifier: Apache-2.0
"""Devices: of simulated nodes, with gaps, chosen by selectors, and how a node fills up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.agent.dra import gather, selectors
from nvct.agent.dra.devices import (
    MIB,
    NUMA_NODE,
    PCI_BUS_ID,
    Device,
    Machine,
    Offer,
    Place,
    Version,
    devices,
    nvlink_domains,
    version,
)
from nvct.agent.dra.selectors import holds, terms
from nvct.agent.machine.inventory import Inventory
from nvct.host.model import Gpu
from nvct.host.nvml.model import GpuAttributes, GpuLink
from nvct_sim import tree
from tests.bench.fragmentation import GPUS, SLICES, Claim, OnDemand, Static, simulate
from tests.support.nvml_node import CACHE
from tests.unit.agent.machines import discovery


def gpu(minor: int) -> Gpu:
    return Gpu(
        index=minor, minor=minor, uuid=f"GPU-{minor}", bus_id="", model="Tesla T4", node=None
    )


def attributes(clique: str = "") -> GpuAttributes:
    return GpuAttributes(
        memory_mib=15360, compute=(7, 5), ecc=True, mig_capable=False, clique=clique
    )


def simulated(base: Path, profile: str) -> tuple[Device, ...]:
    node = tree.create("dra", profile, base, nodes="plain", native_cache=CACHE)
    try:
        with discovery(node) as machine:
            return devices(asyncio.run(gather.machine(machine)))
    finally:
        tree.destroy(node)


def test_a_simulated_node_has_the_incumbents_names_and_attributes(tmp_path: Path) -> None:
    found = simulated(tmp_path, "hgx-h100")

    assert [device.name for device in found] == [f"gpu-{minor}" for minor in range(8)]
    first = found[0]
    assert first.capacity == {"memory": 81559 * MIB}
    assert first.uuid == first.gpu == first.attributes["uuid"]
    shown = {key: value for key, value in first.attributes.items() if key != "uuid"}
    assert shown == {
        "type": "gpu",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": shown["driverVersion"],
        "cudaDriverVersion": shown["cudaDriverVersion"],
        "addressingMode": "None",
        "ecc": True,
        "numaNode": 0,
        NUMA_NODE: 0,
        PCI_BUS_ID: shown[PCI_BUS_ID],
    }
    assert isinstance(shown["driverVersion"], Version)


def test_what_is_unknown_is_left_out() -> None:
    (device,) = devices(Machine(inventory=Inventory(gpus=(gpu(3),))))

    assert device.name == "gpu-3"
    assert device.attributes == {"type": "gpu", "uuid": "GPU-3", "productName": "Tesla T4"}
    assert device.capacity == {}


def test_a_gpu_in_mig_mode_is_no_device() -> None:
    split = replace(gpu(0), mig_enabled=True)

    found = devices(Machine(inventory=Inventory(gpus=(split, gpu(1)))))

    assert [device.name for device in found] == ["gpu-1"]


def test_false_and_zero_are_values() -> None:
    known = {"GPU-0": replace(attributes(), ecc=False)}
    inventory = Inventory(gpus=(gpu(0),), numa={"GPU-0": 0})

    (device,) = devices(Machine(inventory=inventory, attributes=known))

    assert device.attributes["ecc"] is False
    assert device.attributes["numaNode"] == 0


def test_a_long_name_is_cut() -> None:
    long = replace(gpu(0), model="N" * 80)

    (device,) = devices(Machine(inventory=Inventory(gpus=(long,))))

    assert device.attributes["productName"] == "N" * 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.65.06", "580.65.6"), ("13.0", "13.0.0"), ("9", "9.0.0"), ("", None), ("1.2.3.4", None),
        ("1.x", None), ("1..2", None),
    ],
)  # fmt: skip
def test_versions_are_as_semver_has_them(text: str, expected: str | None) -> None:
    assert version(text) == (Version(expected) if expected else None)


def link(first: int, second: int, nvlinks: int) -> GpuLink:
    return GpuLink(gpus=(f"GPU-{first}", f"GPU-{second}"), ancestor=-1, nvlinks=nvlinks)


def test_gpus_that_are_linked_directly_or_over_another_one_are_one_domain() -> None:
    links = (link(1, 2, 4), link(2, 3, 1), link(0, 1, 0), link(4, 5, 2), link(0, 5, 0))
    inventory = Inventory(gpus=tuple(map(gpu, range(6))), links=links)

    domains = nvlink_domains(Machine(inventory=inventory))

    assert domains == {
        "GPU-1": "GPU-1", "GPU-2": "GPU-1", "GPU-3": "GPU-1", "GPU-4": "GPU-4", "GPU-5": "GPU-4",
    }  # fmt: skip


def test_a_fabric_is_the_domain_of_its_gpus() -> None:
    inventory = Inventory(gpus=(gpu(0), gpu(1)), links=(link(0, 1, 4),))
    known = {f"GPU-{minor}": attributes("4f2c.1") for minor in range(2)}

    domains = nvlink_domains(Machine(inventory=inventory, attributes=known))

    assert domains == {"GPU-0": "4f2c.1", "GPU-1": "4f2c.1"}


# Simple CEL selectors on devices as a ResourceSlice has them; others are unknown, never wrong.


DEVICE = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "ecc": {"bool": True}, "numaNode": {"int": 1},
        "cudaComputeCapability": {"version": "9.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}  # fmt: skip
ATTRIBUTES, CAPACITY = "device.attributes['gpu.nvidia.com']", "device.capacity['gpu.nvidia.com']"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("device.driver == 'gpu.nvidia.com'", True),
        ('device.driver == "other.com"', False),
        (f"{ATTRIBUTES}.type == 'gpu'", True),
        (f"{ATTRIBUTES}.type=='mig'", False),
        (f"{ATTRIBUTES}['type'] != 'mig'", True),
        (f"{ATTRIBUTES}.numaNode >= 1", True),
        (f"{ATTRIBUTES}.numaNode < 1", False),
        (f"{ATTRIBUTES}.ecc", True),
        (f"!{ATTRIBUTES}.ecc", False),
        (f"{ATTRIBUTES}.ecc == true", True),
        (f"{ATTRIBUTES}.productName in ['a', 'NVIDIA H100 80GB HBM3']", True),
        (f"{ATTRIBUTES}.productName in ['a', 'b']", False),
        (f"{ATTRIBUTES}.productName.replace(' ', '-') in ['NVIDIA-H100-80GB-HBM3']", True),
        (f"{ATTRIBUTES}.productName.lowerAscii().replace(' ', '-') == 'nvidia-h100'", False),
        (f"{ATTRIBUTES}.cudaComputeCapability.major() == 9", True),
        (f"{ATTRIBUTES}.cudaComputeCapability.major() in [7, 8]", False),
        (f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('8.0.0')) >= 0", True),
        (f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('10.0.0')) >= 0", False),
        (f"{CAPACITY}.memory.compareTo(quantity('80Gi')) >= 0", True),
        (f"{CAPACITY}.memory.compareTo(quantity('80G')) > 0", True),
        (f"{CAPACITY}.memory.compareTo(quantity('81Gi')) >= 0", False),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'", True),
        (f"device.driver == 'gpu.nvidia.com' &&\n ({ATTRIBUTES}.type == 'gpu')", True),
        (f"({ATTRIBUTES}.ecc && {ATTRIBUTES}.numaNode == 2)", False),
        ("true", True),
        (f"{ATTRIBUTES}.ecc && false", False),
    ],
)
def test_what_is_understood(expression: str, expected: bool) -> None:  # noqa: FBT001
    assert holds(expression, "gpu.nvidia.com", DEVICE) is expected
    assert holds(expression, "gpu.nvidia.com", {"basic": DEVICE}) is expected


@pytest.mark.parametrize(
    "expression",
    [
        "", "(", ")", "&&", "'", "device", f"{ATTRIBUTES}.type == 'gpu' || true",
        f"{ATTRIBUTES}.productName.matches('H100')", f"{ATTRIBUTES}.absent == 'x'",
        f"{ATTRIBUTES}.type > 5", f"{CAPACITY}.memory.compareTo(quantity('lots')) >= 0",
        f"!({ATTRIBUTES}.ecc)", f"cel.bind(x, {ATTRIBUTES}.ecc, x)", f"{ATTRIBUTES}.type",
        f"{ATTRIBUTES}.ecc ? true : false",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_unknown(expression: str) -> None:
    assert holds(expression, "gpu.nvidia.com", DEVICE) is None


def test_a_false_term_decides_beside_an_unknown_one() -> None:
    unknown = f"{ATTRIBUTES}.productName.matches('H100')"

    assert holds(f"{unknown} && {ATTRIBUTES}.type == 'mig'", "gpu.nvidia.com", DEVICE) is False
    assert holds(f"{unknown} && {ATTRIBUTES}.type == 'gpu'", "gpu.nvidia.com", DEVICE) is None


def test_terms_are_split_outside_of_strings_and_parentheses() -> None:
    assert terms("((a && b)) && f('x && y') && (c || d)") == ["a", "b", "f('x && y')", "c || d"]


@pytest.mark.parametrize("piece", ["(", "()", "'", "&&", "device.attributes['a'].b && ", "a && ("])
def test_a_hostile_selector_costs_little(piece: str) -> None:
    begun = time.process_time()

    holds(piece * (selectors.LIMIT // len(piece)), "d", DEVICE)

    assert time.process_time() - begun < 2


def test_many_parentheses_cost_little() -> None:
    begun = time.process_time()

    holds("(" * 5000 + ")" * 5000, "d", DEVICE)

    assert time.process_time() - begun < 2


def test_versions_are_those_of_the_driver() -> None:
    assert selectors._semver(Version("9.0.0").text) == (9, 0, 0)


# The simulation that docs/dra.md cites: what a node gives, and what waits.


def mig(profile: str, start: int, slices: range) -> Device:
    return Device(
        name=f"{profile}-{start}", uuid="", gpu="GPU-0", attributes={"profile": profile},
        capacity={}, place=Place(0, start, len(slices), 0), counter_set="gpu",
        counters={f"memory-slice-{n}": 1 for n in slices},
    )  # fmt: skip


OFFER = Offer(
    devices=(
        *(mig("1g.10gb", n, range(n, n + 1)) for n in range(7)),
        mig("3g.40gb", 0, range(4)), mig("3g.40gb", 4, range(4, 8)),
        mig("7g.80gb", 0, range(8)),
    ),
    counters={"gpu": {f"memory-slice-{n}": 1 for n in range(8)}},
)  # fmt: skip


def test_gpus_are_full_when_no_place_is_left_and_come_back() -> None:
    node = OnDemand(OFFER)
    given = [node.take("3g.40gb") for _ in range(2 * GPUS)]
    assert None not in given
    assert node.take("1g.10gb") is None
    for give_back in given:
        assert give_back is not None
        give_back()
    assert node.free == GPUS * SLICES
    assert [node.take("7g.80gb") is None for _ in range(GPUS + 1)] == [False] * GPUS + [True]


def test_a_fixed_layout_gives_the_smallest_device_that_is_large_enough() -> None:
    node = Static([["1g.10gb", "3g.40gb"]])
    assert not node.has("7g.80gb")
    assert node.take("2g.20gb") is not None
    assert node.take("3g.40gb") is None
    assert node.take("1g.10gb") is not None


def test_claims_wait_for_those_before_them_and_smaller_ones_overtake() -> None:
    claims = [
        Claim(0, "7g.80gb", 10), Claim(1, "1g.10gb", 10), Claim(2, "7g.80gb", 10),
        Claim(3, "1g.10gb", 2), Claim(4, "2g.20gb", 1),
    ]  # fmt: skip
    result = simulate(claims, Static([["7g.80gb"], ["1g.10gb"]]))
    # The last two wait for the whole GPU: the only device that is not too small, and the 1g.10gb.
    assert sorted(result.waits) == [0, 0, 8, 8, 16]
    assert result.never == 0
