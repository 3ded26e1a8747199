# SPDX-License-Identifier: Apache-2.0
"""Simple CEL selectors on devices as a ResourceSlice has them; others are unknown, never wrong."""

from __future__ import annotations

import time

import pytest

from nvct.agent.dra import selectors
from nvct.agent.dra.devices import Version
from nvct.agent.dra.selectors import holds, terms

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
