# SPDX-License-Identifier: Apache-2.0
"""A claim's configuration: what nvct can do is accepted, the rest refused."""

from __future__ import annotations

from typing import Any

import pytest

from nvct.agent.dra import sharing
from nvct.agent.dra.devices import DRIVER
from nvct.errors import RequestError


def claim(parameters: object, driver: str = DRIVER, requests: list[str] | None = None) -> Any:
    entry: Any = {"opaque": {"driver": driver, "parameters": parameters}}
    if requests is not None:
        entry["requests"] = requests
    return {"status": {"allocation": {"devices": {"config": [entry]}}}}


def config(kind: str = "GpuConfig", **sharing: object) -> dict[str, object]:
    found: dict[str, object] = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return {**found, "sharing": sharing} if sharing else found


@pytest.mark.parametrize(
    "parameters",
    [
        config(), config("MigDeviceConfig"), config(strategy="TimeSlicing"),
        config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Default"}),
        config(strategy="TimeSlicing", timeSlicingConfig=None),
    ],
)  # fmt: skip
def test_time_slicing_is_what_the_driver_does_anyway(parameters: object) -> None:
    assert sharing.check(claim(parameters), ["gpu"]) == []


def test_another_interval_has_no_effect() -> None:
    asked = config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})

    (warning,) = sharing.check(claim(asked), ["gpu"])

    assert "Long has no effect" in warning


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, "is no object"), ([], "is no object"), ({}, "is of kind /None"),
        ({"apiVersion": "resource.nvidia.com/v1beta1", "kind": "VfioDeviceConfig"}, "VfioDevice"),
        ({"apiVersion": "other.example.com/v1", "kind": "GpuConfig"}, "other.example.com"),
        (config(strategy="MPS"), "by MPS"), (config(strategy="Magic"), "unknown sharing strategy"),
        (config(strategy="TimeSlicing", timeSlicingConfig={"interval": "x"}), "unknown interval"),
        (config(strategy="TimeSlicing", timeSlicingConfig=5), "is no object"),
        ({**config(), "sharing": "x"}, "sharing of the claim's"),
        ({**config(), "apiVersion": "resource.nvidia.com/v9"}, "v9/GpuConfig"),
        ({**config(), "mps": {}}, "has no field mps"),
        ({**config(), "metadata": {}}, "has no field metadata"),
        (config(stratgy="MPS"), "sharing of the claim's configuration has no field stratgy"),
        (
            config(strategy="TimeSlicing", timeSlicingConfig={"period": "Long"}),
            "sharing.timeSlicingConfig of the claim's configuration has no field period",
        ),
        (
            config("MigDeviceConfig", strategy="TimeSlicing", timeSlicingConfig={}),
            "has no field timeSlicingConfig",
        ),
        (config(strategy="TimeSlicing", mpsConfig={"defaultActiveThreadPercentage": 10}), "MPS"),
        (config(mpsConfig={}), "MPS"), (config(strategy=""), "unknown sharing strategy"),
        (config(strategy="TimeSlicing", timeSlicingConfig=False), "is no object"),
        ({**config(), "kind": []}, r"/\[\]"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(parameters: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        sharing.check(claim(parameters), ["gpu"])


def test_configurations_of_others_do_not_matter() -> None:
    mps = config(strategy="MPS")

    assert sharing.check(claim(mps, driver="other.example.com"), ["gpu"]) == []
    assert sharing.check(claim(mps, requests=["nic"]), ["gpu"]) == []
    assert sharing.check({"status": {}}, ["gpu"]) == []
    with pytest.raises(RequestError):
        sharing.check(claim(mps, requests=["gpu/large"]), ["gpu"])
