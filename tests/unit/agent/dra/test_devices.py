# SPDX-License-Identifier: Apache-2.0
"""Devices: of simulated nodes, with gaps, chosen by selectors, and how a node fills up."""

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


def test_what_is_unknown_is_left_out_and_a_long_name_is_cut() -> None:
    (device,) = devices(Machine(inventory=Inventory(gpus=(replace(gpu(3), model="N" * 80),))))

    assert device.name == "gpu-3"
    assert device.attributes == {"type": "gpu", "uuid": "GPU-3", "productName": "N" * 64}
    assert device.capacity == {}


def test_false_and_zero_are_values() -> None:
    known = {"GPU-0": replace(attributes(), ecc=False)}
    inventory = Inventory(gpus=(gpu(0),), numa={"GPU-0": 0})

    (device,) = devices(Machine(inventory=inventory, attributes=known))

    assert (device.attributes["ecc"], device.attributes["numaNode"]) == (False, 0)


@pytest.mark.parametrize("clique", ["", "4f2c.1"])
def test_gpus_that_are_linked_directly_or_over_another_one_or_of_a_fabric_are_one_domain(
    clique: str,
) -> None:
    nvlinks = {(1, 2): 4, (2, 3): 1, (0, 1): 0, (4, 5): 2, (0, 5): 0}
    links = tuple(
        GpuLink(gpus=(f"GPU-{first}", f"GPU-{second}"), ancestor=-1, nvlinks=number)
        for (first, second), number in nvlinks.items()
    )
    inventory = Inventory(gpus=tuple(map(gpu, range(6))), links=links)
    fabric = {f"GPU-{n}": attributes(clique) for n in (4, 5)}

    assert nvlink_domains(Machine(inventory=inventory, attributes=fabric)) == {
        **{f"GPU-{n}": "GPU-1" for n in (1, 2, 3)},
        **{f"GPU-{n}": clique or "GPU-4" for n in (4, 5)},
    }


def test_a_gpu_in_mig_mode_is_no_device() -> None:
    split = replace(gpu(0), mig_enabled=True)

    found = devices(Machine(inventory=Inventory(gpus=(split, gpu(1)))))

    assert [device.name for device in found] == ["gpu-1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.65.06", "580.65.6"), ("13.0", "13.0.0"), ("9", "9.0.0"), ("", None), ("1.2.3.4", None),
        ("1.x", None), ("1..2", None),
    ],
)  # fmt: skip
def test_versions_are_as_semver_has_them(text: str, expected: str | None) -> None:
    assert version(text) == (Version(expected) if expected else None)


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
        (f"{ATTRIBUTES}.type == 'gpu'", True),
        (f"{ATTRIBUTES}.type=='mig'", False),
        (f"{ATTRIBUTES}['type'] != 'mig'", True),
        (f"{ATTRIBUTES}.numaNode >= 1", True),
        (f"{ATTRIBUTES}.ecc", True),
        (f"!{ATTRIBUTES}.ecc", False),
        (f"{ATTRIBUTES}.ecc == true", True),
        (f"{ATTRIBUTES}.productName in ['a', 'NVIDIA H100 80GB HBM3']", True),
        (f"{ATTRIBUTES}.productName.replace(' ', '-') in ['NVIDIA-H100-80GB-HBM3']", True),
        (f"{ATTRIBUTES}.productName.lowerAscii().replace(' ', '-') == 'nvidia-h100'", False),
        (f"{ATTRIBUTES}.cudaComputeCapability.major() == 9", True),
        (f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('8.0.0')) >= 0", True),
        (f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('10.0.0')) >= 0", False),
        (f"{CAPACITY}.memory.compareTo(quantity('80Gi')) >= 0", True),
        (f"{CAPACITY}.memory.compareTo(quantity('80G')) > 0", True),
        (f"{CAPACITY}.memory.compareTo(quantity('81Gi')) >= 0", False),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'", True),
        (f"device.driver == 'gpu.nvidia.com' &&\n ({ATTRIBUTES}.type == 'gpu')", True),
        ("true", True),
        (f"{ATTRIBUTES}.ecc && false", False),
    ],
)
def test_what_is_understood(expression: str, expected: bool) -> None:
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

    for expression in (piece * (selectors.LIMIT // len(piece)), "(" * 5000 + ")" * 5000):
        holds(expression, "d", DEVICE)

    assert time.process_time() - begun < 2
