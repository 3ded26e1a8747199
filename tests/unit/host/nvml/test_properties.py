# SPDX-License-Identifier: Apache-2.0
"""Verb properties, over a library in Python."""

import pynvml
import pytest

from nvct.host.nvml.calls import Calls
from nvct.host.nvml.model import GpuProperties
from nvct.host.nvml.report import properties
from tests.unit.host.nvml.library import PythonNvml, nvml_error


class BrandedNvml(PythonNvml):
    """GPUs that have a brand and a compute capability, where the dict has one."""

    def nvmlDeviceGetBrand(self, handle: dict[str, object]) -> object:  # noqa: N802 - NVML's names
        return self._known(handle, "brand")

    def nvmlDeviceGetAddressingMode(self, handle: dict[str, object]) -> object:  # noqa: N802
        return self._known(handle, "addressing")

    def nvmlDeviceGetCudaComputeCapability(self, handle: dict[str, object]) -> object:  # noqa: N802
        return self._known(handle, "capability")

    @staticmethod
    def _known(handle: dict[str, object], key: str) -> object:
        if key not in handle:
            raise nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle[key]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({"brand": 2, "capability": (7, 5)}, GpuProperties(brand="Tesla", arch="7.5")),
        ({"brand": 99}, GpuProperties(brand="Unknown")),
        ({"brand": -1}, GpuProperties(brand="Unknown")),
        ({"capability": (9, 0)}, GpuProperties(arch="9.0")),
        ({"addressing": pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS}, GpuProperties(addressing="ATS")),
        ({"addressing": pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM}, GpuProperties(addressing="HMM")),
        (
            {"addressing": pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE},
            GpuProperties(addressing="None"),
        ),
        ({"addressing": 9}, GpuProperties()),
        ({}, GpuProperties()),
    ],
)
def test_what_nvml_does_not_report_is_empty(
    gpu: dict[str, object], expected: GpuProperties
) -> None:
    assert properties(Calls(BrandedNvml({"uuid": b"GPU-1", **gpu}))) == {"GPU-1": expected}


def test_a_lost_gpu_has_no_properties() -> None:
    lost: dict[str, object] = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}

    assert list(properties(Calls(BrandedNvml(lost, {"uuid": "GPU-1"})))) == ["GPU-1"]
