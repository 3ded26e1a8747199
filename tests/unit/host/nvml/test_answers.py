# SPDX-License-Identifier: Apache-2.0
"""Values of answers: parsed as they were sent; malformed ones are refused."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from nvct.host.nvml import answers
from nvct.host.nvml.messages import MalformedMessageError
from nvct.host.nvml.model import (
    GpuAttributes,
    GpuProperties,
    MigAttributes,
    NvmlGpu,
    NvmlMig,
    NvmlReport,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

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
    assert answers.report(sent(asdict(REPORT))) == REPORT


def test_properties_are_parsed_as_they_were_sent() -> None:
    by_uuid = {
        "GPU-1": GpuProperties(brand="Tesla", arch="7.5", addressing="HMM"),
        "GPU-2": GpuProperties(),
    }

    assert (
        answers.properties(sent({uuid: asdict(gpu) for uuid, gpu in by_uuid.items()})) == by_uuid
    )


def test_the_empty_answer_is_null() -> None:
    answers.nothing(None)
    with pytest.raises(MalformedMessageError):
        answers.nothing({})


@pytest.mark.parametrize(
    ("table", "model"),
    [
        (answers.REPORT, NvmlReport),
        (answers.GPU, NvmlGpu),
        (answers.MIG, NvmlMig),
        (answers.PROPERTIES, GpuProperties),
        (answers.ATTRIBUTES, GpuAttributes),
        (answers.MIG_ATTRIBUTES, MigAttributes),
    ],
)
def test_each_table_has_the_fields_of_its_class(table: Mapping[str, object], model: type) -> None:
    assert list(table) == [field.name for field in fields(model)]


def gpu_of(report: Any) -> Any:
    return report["gpus"][0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda report: report.pop("gpus"), "lacks or has in excess: gpus"),
        (lambda report: report.update(more=1), "lacks or has in excess: more"),
        (lambda report: report.update(gpus={}), "the report's field gpus has a wrong type"),
        (lambda report: report.update(warnings=[1]), "warnings is not a list of strings"),
        (lambda report: report.update(gpus=[None]), "a GPU is not an object"),
        (lambda report: gpu_of(report).update(index=True), "a GPU's field index has a wrong type"),
        (lambda report: gpu_of(report).update(minor=1.0), "a GPU's field minor has a wrong type"),
        (lambda report: gpu_of(report).update(uuid=None), "a GPU's field uuid has a wrong type"),
        (lambda report: gpu_of(report).update(coherent=0), "field coherent has a wrong type"),
        (lambda report: gpu_of(report).update(mig=[1]), "a MIG device is not an object"),
        (lambda report: gpu_of(report)["mig"][0].pop("gi"), "a MIG device lacks or has in"),
    ],
)
def test_a_report_with_a_wrong_field_is_refused(
    change: Callable[[Any], object], reason: str
) -> None:
    value = sent(asdict(REPORT))
    change(value)

    with pytest.raises(MalformedMessageError, match=reason):
        answers.report(value)


@pytest.mark.parametrize("value", [None, [], {"GPU-1": None}, {"GPU-1": {"brand": "Tesla"}}])
def test_wrong_properties_are_refused(value: Any) -> None:
    with pytest.raises(MalformedMessageError):
        answers.properties(value)


@pytest.mark.parametrize("compute", [None, [], [9], [9, None], [9, 0, 0], [True, 0]])
def test_wrong_attributes_are_refused(compute: object) -> None:
    gpu = asdict(GpuAttributes(memory_mib=1, compute=(9, 0), ecc=None, mig_capable=True))
    assert answers.attributes({"GPU-1": sent(gpu)})
    with pytest.raises(MalformedMessageError):
        answers.attributes({"GPU-1": {**sent(gpu), "compute": sent(compute)}})
    with pytest.raises(MalformedMessageError):
        answers.attributes([])
