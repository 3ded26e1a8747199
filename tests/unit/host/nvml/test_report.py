# SPDX-License-Identifier: Apache-2.0
"""Verb report, over a library in Python."""

import ctypes
import json
from dataclasses import asdict
from types import SimpleNamespace

import pynvml
import pytest

from nvct import typed
from nvct.host.nvml.attributes import attributes
from nvct.host.nvml.calls import Calls
from nvct.host.nvml.model import GpuAttributes, GpuProperties
from nvct.host.nvml.report import properties, report
from tests.unit.host.nvml.library import PythonNvml, nvml_error


def calls(*gpus: dict[str, object]) -> Calls:
    return Calls(PythonNvml(*gpus))


def test_gpu_is_reported_with_the_bus_id_of_sysfs_and_text_for_bytes() -> None:
    answer = report(calls({"minor": 3, "uuid": b"GPU-1", "name": b"NVIDIA T4"}))

    assert (answer.driver_version, answer.cuda_version) == ("580.159.04", "12.8")
    (gpu,) = answer.gpus
    assert (gpu.minor, gpu.uuid, gpu.bus_id, gpu.name) == (3, "GPU-1", "0000:ab:00.0", "NVIDIA T4")
    assert (gpu.mig_enabled, gpu.mig) == (False, ())


def test_an_integrated_gpu_has_neither_minor_nor_bus_id() -> None:
    answer = report(calls({"uuid": "54d0709b", "name": b"Orin (nvgpu)"}))

    (gpu,) = answer.gpus
    assert (gpu.minor, gpu.bus_id, gpu.name) == (-1, "", "Orin (nvgpu)")
    assert answer.warnings == ()


def test_a_lost_gpu_is_left_out_with_a_warning() -> None:
    lost: dict[str, object] = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}

    answer = report(calls(lost, {"minor": 1, "uuid": "GPU-1", "name": "X"}))

    assert [gpu.index for gpu in answer.gpus] == [1]
    assert answer.warnings == ("NVML refuses GPU 0: nvmlDeviceGetHandleByIndex: gpu is lost",)


@pytest.mark.parametrize(
    ("addressing", "coherent"),
    [
        (pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS, True),
        (pynvml.NVML_DEVICE_ADDRESSING_MODE_HMM, False),
        (nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED), False),
        (nvml_error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND), False),
        (nvml_error(pynvml.NVML_ERROR_UNKNOWN), None),
    ],
)
def test_gpu_is_coherent_where_the_hardware_translates_addresses(
    addressing: object, coherent: object
) -> None:
    gpu: dict[str, object] = {"minor": 0, "uuid": "GPU-1", "name": "X", "addressing": addressing}

    (reported,) = report(calls(gpu)).gpus

    assert reported.coherent is coherent


@pytest.mark.parametrize(
    ("profiles", "ids", "shown"),
    [
        ({pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: 47}, {1: 47}, "1g.24gb+gfx"),
        ({pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: 47}, {1: 14}, "1g.24gb"),
        ({pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: 47}, None, "1g.24gb"),
        (None, {1: 47}, "1g.24gb"),
    ],
)
def test_mig_device_has_graphics_where_the_profile_of_its_instance_has_them(
    profiles: object, ids: object, shown: str
) -> None:
    device = {"uuid": "MIG-1", "gi": 1, "ci": 0, "name": "NVIDIA RTX PRO 6000 MIG 1g.24gb"}
    gpu: dict[str, object] = {"minor": 0, "uuid": "GPU-1", "name": "X", "mig": {0: device}}
    gpu |= {"gfx": profiles} if profiles else {}
    gpu |= {"gi_profiles": ids} if ids else {}

    (reported,) = report(calls(gpu)).gpus

    assert [mig.profile for mig in reported.mig] == [shown]


def test_mig_devices_keep_their_index_across_gaps() -> None:
    first = {"uuid": "MIG-1", "gi": 7, "ci": 0, "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}
    other = {"uuid": "MIG-2", "gi": 2, "ci": 1, "name": "NVIDIA A30"}
    devices = {0: first, 3: other, 5: pynvml.NVML_ERROR_UNKNOWN}

    answer = report(calls({"minor": 0, "uuid": "GPU-1", "name": "X", "mig": devices}))

    assert [(m.index, m.uuid, m.gi, m.ci, m.profile) for m in answer.gpus[0].mig] == [
        (0, "MIG-1", 7, 0, "1g.10gb"),
        (3, "MIG-2", 2, 1, "1c.2g.20gb"),
    ]
    refused = "NVML refuses MIG device 0:5: nvmlDeviceGetMigDeviceHandleByIndex: unknown error"
    assert answer.warnings == (refused,)


# Verb properties, over a library in Python.


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


# Verb attributes, over a library in Python; the simulated nodes are those of tests/peer.


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
