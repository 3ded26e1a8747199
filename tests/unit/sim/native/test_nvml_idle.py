# SPDX-License-Identifier: Apache-2.0
"""Values that monitoring reads of an idle GPU, and values that some GPUs do not have."""

from typing import Any

import pytest

from tests.support.nvml_node import NvmlNode, code_of, gpu_record

GUEST = {
    "name": "GRID A100D-8C",
    "brand": 9,
    "arch": 7,
    "power": 0,
    "temp": 0,
    "vgpuhost": "550.90",
}


def handle(nvml: Any, index: int = 0) -> Any:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByIndex(index)


def test_monitoring_gets_values_of_an_idle_gpu(node: NvmlNode, nvml: Any) -> None:
    node.set_gpus(gpu_record(0, cores=16896, buswidth=5120))
    gpu = handle(nvml)

    assert nvml.nvmlDeviceGetEncoderStats(gpu) == (0, 0, 0)
    assert nvml.nvmlDeviceGetEncoderSessions(gpu) == nvml.nvmlDeviceGetFBCSessions(gpu) == []
    assert nvml.nvmlDeviceGetFBCStats(gpu).sessionsCount == 0
    assert nvml.nvmlDeviceGetAccountingMode(gpu) == nvml.NVML_FEATURE_DISABLED
    assert nvml.nvmlDeviceGetAccountingPids(gpu) == []
    assert (
        nvml.nvmlDeviceGetOfaUtilization(gpu)[0] == nvml.nvmlDeviceGetJpgUtilization(gpu)[0] == 0
    )
    assert nvml.nvmlDeviceGetViolationStatus(gpu, nvml.NVML_PERF_POLICY_POWER).violationTime == 0
    assert nvml.nvmlDeviceGetRowRemapperHistogram(gpu).max == 2560
    assert nvml.nvmlDeviceGetNumGpuCores(gpu) == 16896
    assert nvml.nvmlDeviceGetMemoryBusWidth(gpu) == 5120
    assert nvml.nvmlDeviceGetPcieSpeed(gpu) == 32000
    assert nvml.nvmlDeviceGetIrqNum(gpu) == 200
    assert nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice == 1
    assert nvml.nvmlUnitGetCount() == 0
    assert nvml.nvmlSystemGetHicVersion() == []
    assert code_of(nvml.nvmlDeviceGetFanSpeed, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED
    assert code_of(nvml.nvmlDeviceGetProcessUtilization, gpu, 0) == nvml.NVML_ERROR_NOT_FOUND


def test_each_field_value_has_its_own_result(node: NvmlNode, nvml: Any) -> None:
    node.set_gpus(gpu_record(0, eccerrors=3))
    fields = {
        nvml.NVML_FI_DEV_ECC_CURRENT: 1,
        nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: 0,
        nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: 3,
        nvml.NVML_FI_DEV_NVLINK_LINK_COUNT: 0,
        nvml.NVML_FI_DEV_REMAPPED_FAILURE: 0,
        nvml.NVML_FI_DEV_POWER_INSTANT: 70000,
        nvml.NVML_FI_DEV_POWER_MIN_LIMIT: 200000,
        nvml.NVML_FI_DEV_POWER_CURRENT_LIMIT: 700000,
    }

    *known, other = nvml.nvmlDeviceGetFieldValues(handle(nvml), [*fields, 900])

    assert {value.fieldId: value.value.ullVal for value in known} == fields
    assert {value.nvmlReturn for value in known} == {nvml.NVML_SUCCESS}
    assert other.nvmlReturn == nvml.NVML_ERROR_NOT_SUPPORTED


def test_a_gpu_in_mig_mode_has_no_utilization(node: NvmlNode, nvml: Any) -> None:
    node.add_mig_devices(1, 1)
    gpu = handle(nvml, 1)

    for question in (
        nvml.nvmlDeviceGetUtilizationRates,
        nvml.nvmlDeviceGetEncoderUtilization,
        nvml.nvmlDeviceGetDecoderUtilization,
        nvml.nvmlDeviceGetJpgUtilization,
        nvml.nvmlDeviceGetOfaUtilization,
    ):
        assert code_of(question, gpu) == nvml.NVML_ERROR_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Temperature", (0,)),
        ("TemperatureThreshold", (0,)),
        ("PowerUsage", ()),
        ("EnforcedPowerLimit", ()),
        ("PowerManagementMode", ()),
        ("PowerManagementLimit", ()),
        ("PowerManagementDefaultLimit", ()),
        ("PowerManagementLimitConstraints", ()),
        ("TotalEnergyConsumption", ()),
        ("PcieThroughput", (0,)),
        ("SupportedMemoryClocks", ()),
    ],
)
def test_a_vgpu_has_no_values_of_its_board(
    name: str, arguments: tuple[int, ...], node: NvmlNode, nvml: Any
) -> None:
    node.set_gpus(gpu_record(0, **GUEST))
    gpu = handle(nvml)

    assert nvml.nvmlDeviceGetVirtualizationMode(gpu) == nvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    code = code_of(getattr(nvml, f"nvmlDeviceGet{name}"), gpu, *arguments)
    assert code == nvml.NVML_ERROR_NOT_SUPPORTED
