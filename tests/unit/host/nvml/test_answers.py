# SPDX-License-Identifier: Apache-2.0
"""Values of answers: parsed as they were sent; malformed ones are refused."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from nvct import typed
from nvct.host.nvml.model import (
    GpuAttributes,
    GpuProperties,
    NvmlGpu,
    NvmlMig,
    NvmlReport,
)
from nvct.typed import MalformedError

MIG = NvmlMig(index=3, uuid="MIG-1", gi=7, ci=0, profile="1g.10gb")
GPU = NvmlGpu(
    index=0, minor=1, uuid="GPU-1", bus_id="0000:18:00.0", name="NVIDIA H100",
    mig_enabled=True, mig=(MIG,), coherent=False,
)  # fmt: skip
OTHER = NvmlGpu(index=1, minor=-1, uuid="GPU-2", bus_id="", name="Orin")
REPORT = NvmlReport(
    driver_version="580.159.04",
    cuda_version="13.0",
    gpus=(GPU, OTHER),
    warnings=("GPU 2 is lost",),
)


def sent(value: object) -> Any:
    return json.loads(json.dumps(value))


def test_a_report_is_parsed_as_it_was_sent() -> None:
    assert typed.load(NvmlReport, sent(asdict(REPORT))) == REPORT


def test_properties_are_parsed_as_they_were_sent() -> None:
    by_uuid = {
        "GPU-1": GpuProperties(brand="Tesla", arch="7.5", addressing="HMM"),
        "GPU-2": GpuProperties(),
    }

    assert (
        typed.load(
            dict[str, GpuProperties], sent({uuid: asdict(gpu) for uuid, gpu in by_uuid.items()})
        )
        == by_uuid
    )


def gpu_of(report: Any) -> Any:
    return report["gpus"][0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda report: report.pop("gpus"), "a value: it lacks gpus"),
        (lambda report: report.update(more=1), "it has the unknown field 'more'"),
        (lambda report: report.update(gpus={}), r"\.gpus: it is an object, not a list"),
        (
            lambda report: report.update(warnings=[1]),
            r"warnings\[0\]: it is an integer, not a str",
        ),
        (lambda report: report.update(gpus=[None]), r"gpus\[0\]: it is null, not an object"),
        (lambda report: gpu_of(report).update(index=True), r"index: it is a boolean, not an int"),
        (
            lambda report: gpu_of(report).update(minor=1.0),
            r"minor: it is a number, not an integer",
        ),
        (lambda report: gpu_of(report).update(uuid=None), r"uuid: it is null, not a string"),
        (lambda report: gpu_of(report).update(coherent=0), r"coherent: it is an integer"),
        (lambda report: gpu_of(report).update(mig=[1]), r"mig\[0\]: it is an integer"),
        (lambda report: gpu_of(report)["mig"][0].pop("gi"), r"mig\[0\]: it lacks gi"),
    ],
)
def test_a_report_with_a_wrong_field_is_refused(
    change: Callable[[Any], object], reason: str
) -> None:
    value = sent(asdict(REPORT))
    change(value)

    with pytest.raises(MalformedError, match=reason):
        typed.load(NvmlReport, value)


@pytest.mark.parametrize("value", [None, [], {"GPU-1": None}, {"GPU-1": {"brand": "Tesla"}}])
def test_wrong_properties_are_refused(value: Any) -> None:
    with pytest.raises(MalformedError):
        typed.load(dict[str, GpuProperties], value)


@pytest.mark.parametrize("compute", [None, [], [9], [9, None], [9, 0, 0], [True, 0]])
def test_wrong_attributes_are_refused(compute: object) -> None:
    gpu = asdict(GpuAttributes(memory_mib=1, compute=(9, 0), ecc=None, mig_capable=True))
    assert typed.load(dict[str, GpuAttributes], {"GPU-1": sent(gpu)})
    with pytest.raises(MalformedError):
        typed.load(dict[str, GpuAttributes], {"GPU-1": {**sent(gpu), "compute": sent(compute)}})
    with pytest.raises(MalformedError):
        typed.load(dict[str, GpuAttributes], [])
