# SPDX-License-Identifier: Apache-2.0
"""Verb report, over a library in Python."""

import pynvml
import pytest

from nvct.host.nvml.calls import Calls
from nvct.host.nvml.report import report
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
