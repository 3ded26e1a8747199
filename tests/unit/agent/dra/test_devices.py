# SPDX-License-Identifier: Apache-2.0
"""Devices of simulated nodes, and of GPUs about which something is unknown."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from nvct.agent.dra import gather
from nvct.agent.dra.devices import (
    MIB,
    PCI_BUS_ID,
    Device,
    Machine,
    Version,
    devices,
    nvlink_domains,
    version,
)
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
