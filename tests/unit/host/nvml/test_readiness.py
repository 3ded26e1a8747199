# SPDX-License-Identifier: Apache-2.0
"""Verb readiness, over a library in Python."""

import json
from types import SimpleNamespace

import pytest

from nvct import typed
from nvct.host.nvml.attributes import readiness
from nvct.host.nvml.calls import Calls
from nvct.host.nvml.sample_model import GpuReadiness
from tests.unit.host.nvml.test_report import AttributedNvml, fabric

BUS = "00000000:18:00.0"


class ReadyNvml(AttributedNvml):
    """GPUs with a persistence mode."""

    def nvmlDeviceGetPersistenceMode(self, handle: dict[str, object]) -> object:  # noqa: N802
        return self._known(handle, "persistence")

    def nvmlDeviceGetPciInfo(self, handle: dict[str, object]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=self._known(handle, "bus").encode())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({}, GpuReadiness(bus_id=BUS)),
        ({"persistence": 1}, GpuReadiness(bus_id=BUS, persistence=True)),
        (
            {"persistence": 0, "fabric": fabric(2)},
            GpuReadiness(bus_id=BUS, persistence=False, fabric=2),
        ),
        ({"fabric": fabric(3, status=999)}, GpuReadiness(bus_id=BUS, fabric=3, fabric_status=999)),
    ],
)
def test_what_a_gpu_reports(gpu: dict[str, object], expected: GpuReadiness) -> None:
    found = readiness(Calls(ReadyNvml({"bus": BUS, **gpu}, {})))

    assert found == (expected,)  # NVML refuses the second one
    assert typed.load(tuple[GpuReadiness, ...], json.loads(json.dumps(typed.dump(found)))) == found
