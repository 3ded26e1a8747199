# SPDX-License-Identifier: Apache-2.0
"""Verb attributes, over a library in Python; the simulated nodes are those of tests/peer."""

import ctypes
import json
from dataclasses import asdict
from types import SimpleNamespace

import pynvml
import pytest

from nvct import typed
from nvct.host.nvml.attributes import attributes
from nvct.host.nvml.calls import Calls
from nvct.host.nvml.model import GpuAttributes
from tests.unit.host.nvml.library import PythonNvml, nvml_error

CLUSTER = bytes(range(16))
UNKNOWN = GpuAttributes(memory_mib=None, compute=(0, 0), ecc=False, mig_capable=False)


class AttributedNvml(PythonNvml):
    """GPUs that have attributes where the dict has them."""

    NVML_GPU_FABRIC_STATE_COMPLETED = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    c_nvmlGpuFabricInfo_t = pynvml.c_nvmlGpuFabricInfo_t  # noqa: N815 - NVML's names

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, object]) -> object:  # noqa: N802
        return SimpleNamespace(total=self._known(handle, "memory"))

    def nvmlDeviceGetCudaComputeCapability(self, handle: dict[str, object]) -> object:  # noqa: N802
        return self._known(handle, "capability")

    def nvmlDeviceGetEccMode(self, handle: dict[str, object]) -> object:  # noqa: N802
        if handle.get("ecc") == "lost":
            raise nvml_error(pynvml.NVML_ERROR_GPU_IS_LOST)
        return [self._known(handle, "ecc"), 0]

    def nvmlDeviceGetGpuFabricInfo(self, handle: dict[str, object], info: object) -> None:  # noqa: N802
        fabric = self._known(handle, "fabric")
        assert isinstance(fabric, bytes)
        target: ctypes.Structure = info._obj  # type: ignore[attr-defined]
        ctypes.memmove(ctypes.addressof(target), fabric, ctypes.sizeof(target))

    @staticmethod
    def _known(handle: dict[str, object], key: str) -> object:
        if key not in handle:
            raise nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle[key]


def fabric(state: int, cluster: bytes = CLUSTER, status: int = 0) -> bytes:
    numbers = (status, 7, state)  # 7: the clique
    return cluster + b"".join(number.to_bytes(4, "little") for number in numbers)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (
            {"memory": 81559 * 2**20 + 5, "capability": (9, 0), "ecc": 1, "mig": {}},
            GpuAttributes(memory_mib=81559, compute=(9, 0), ecc=True, mig_capable=True),
        ),
        ({}, UNKNOWN),
        (
            {"ecc": "lost"},
            GpuAttributes(memory_mib=None, compute=(0, 0), ecc=None, mig_capable=False),
        ),
        ({"fabric": fabric(pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)}, UNKNOWN),
        ({"fabric": fabric(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, bytes(16))}, UNKNOWN),
        ({"fabric": fabric(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, status=999)}, UNKNOWN),
        (
            {"fabric": fabric(pynvml.NVML_GPU_FABRIC_STATE_COMPLETED)},
            GpuAttributes(
                memory_mib=None, compute=(0, 0), ecc=False, mig_capable=False,
                clique="00010203-0405-0607-0809-0a0b0c0d0e0f.7",
            ),
        ),
    ],
)  # fmt: skip
def test_what_nvml_does_not_report_is_unknown(
    gpu: dict[str, object], expected: GpuAttributes
) -> None:
    found = attributes(Calls(AttributedNvml({"uuid": b"GPU-1", **gpu})))

    assert found == {"GPU-1": expected}
    sent = json.loads(json.dumps({uuid: asdict(each) for uuid, each in found.items()}))
    assert typed.load(dict[str, GpuAttributes], sent) == found


def test_a_lost_gpu_has_no_attributes() -> None:
    lost: dict[str, object] = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}

    assert list(attributes(Calls(AttributedNvml(lost, {"uuid": "GPU-1"})))) == ["GPU-1"]
