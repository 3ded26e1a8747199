# SPDX-License-Identifier: Apache-2.0
"""The adapter over nvidia-ml-py: with a library in Python, and with files that are no NVML."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pynvml
import pytest

from nvct.errors import NvmlError
from nvct.host import nvml
from nvct.host.nvml import LibraryNvml
from tests.support.host_tree import elf_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def error_class(code: object) -> type[Exception]:
    found: type[Exception] = pynvml.nvmlExceptionClass(code)  # type: ignore[no-untyped-call]
    return found


def nvml_error(code: object) -> Exception:
    return error_class(code)()


class PythonNvml(ModuleType):
    """The functions of pynvml that the adapter calls, over a list of GPUs as dicts."""

    NVML_DEVICE_MIG_ENABLE = pynvml.NVML_DEVICE_MIG_ENABLE
    NVMLError = pynvml.NVMLError
    NVMLError_NotFound = error_class(pynvml.NVML_ERROR_NOT_FOUND)
    NVMLError_InvalidArgument = error_class(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    NVMLError_NotSupported = error_class(pynvml.NVML_ERROR_NOT_SUPPORTED)
    NVMLError_FunctionNotFound = error_class(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    NVML_DEVICE_ADDRESSING_MODE_ATS = pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS
    NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX = pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX

    def __init__(self, *gpus: dict[str, object]) -> None:
        super().__init__("fake_pynvml")
        self.gpus = gpus

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802 - NVML's names
        return b"580.159.04"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12080

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, object]:  # noqa: N802
        gpu = self.gpus[index]
        if "error" in gpu:
            raise nvml_error(gpu["error"])
        return gpu

    def nvmlDeviceGetMigMode(self, handle: dict[str, object]) -> list[object]:  # noqa: N802
        if "mig" not in handle:
            raise nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMinorNumber(self, handle: dict[str, object]) -> object:  # noqa: N802
        if "minor" not in handle:
            raise nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle["minor"]

    def nvmlDeviceGetUUID(self, handle: dict[str, object]) -> object:  # noqa: N802
        return handle["uuid"]

    def nvmlDeviceGetPciInfo(self, handle: dict[str, object]) -> SimpleNamespace:  # noqa: N802
        if "minor" not in handle:
            raise nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(busId=b"00000000:AB:00.0")

    def nvmlDeviceGetName(self, handle: dict[str, object]) -> object:  # noqa: N802
        return handle["name"]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: dict[str, object]) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, handle: dict[str, object], index: int
    ) -> dict[str, object]:
        devices = handle["mig"]
        assert isinstance(devices, dict)
        if index not in devices:
            raise nvml_error(pynvml.NVML_ERROR_NOT_FOUND)
        device = devices[index]
        if isinstance(device, int):
            raise nvml_error(device)
        assert isinstance(device, dict)
        return device

    def nvmlDeviceGetGpuInstanceId(self, handle: dict[str, object]) -> object:  # noqa: N802
        return handle["gi"]

    def nvmlDeviceGetComputeInstanceId(self, handle: dict[str, object]) -> object:  # noqa: N802
        return handle["ci"]

    def nvmlDeviceGetAttributes(self, _handle: dict[str, object]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(
            gpuInstanceSliceCount=2, computeInstanceSliceCount=1, memorySizeMB=19968
        )

    def nvmlDeviceGetAddressingMode(self, handle: dict[str, object]) -> object:  # noqa: N802
        mode = handle.get("addressing", pynvml.NVML_DEVICE_ADDRESSING_MODE_NONE)
        if isinstance(mode, Exception):
            raise mode
        return mode

    def nvmlDeviceGetGpuInstanceProfileInfo(  # noqa: N802
        self, handle: dict[str, object], kind: int
    ) -> SimpleNamespace:
        profiles = handle.get("gfx")
        if not isinstance(profiles, dict) or kind not in profiles:
            raise nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(id=profiles[kind])

    def nvmlDeviceGetGpuInstanceById(self, handle: dict[str, object], gi: int) -> int:  # noqa: N802
        if "gi_profiles" not in handle:
            raise nvml_error(pynvml.NVML_ERROR_NO_PERMISSION)
        profiles = handle["gi_profiles"]
        assert isinstance(profiles, dict)
        profile: int = profiles[gi]
        return profile

    def nvmlGpuInstanceGetInfo(self, instance: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(profileId=instance)


def calls(*gpus: dict[str, object]) -> nvml.Calls:
    return nvml.Calls(PythonNvml(*gpus))


class OldNvml(PythonNvml):
    """One that is initialized and counts, and does not know its CUDA version."""

    def nvmlInit(self) -> None:  # noqa: N802
        return

    def nvmlShutdown(self) -> None:  # noqa: N802
        return

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        raise nvml_error(pynvml.NVML_ERROR_UNKNOWN)


class OldLibrary(LibraryNvml):
    """The adapter, with that library loaded."""

    def _load(self) -> ModuleType:
        return OldNvml({"minor": 0, "uuid": "GPU-1", "name": "X"})


def test_an_error_names_the_call_that_failed() -> None:
    failed = "nvmlSystemGetCudaDriverVersion of /lib/libnvidia-ml.so.1 failed: unknown error"
    with pytest.raises(NvmlError, match=failed):
        OldLibrary("/lib/libnvidia-ml.so.1").report()


def test_gpu_is_reported_with_the_bus_id_of_sysfs_and_text_for_bytes() -> None:
    report = nvml._report(calls({"minor": 3, "uuid": b"GPU-1", "name": b"NVIDIA T4"}))

    assert (report.driver_version, report.cuda_version) == ("580.159.04", "12.8")
    (gpu,) = report.gpus
    assert (gpu.minor, gpu.uuid, gpu.bus_id, gpu.name) == (3, "GPU-1", "0000:ab:00.0", "NVIDIA T4")
    assert (gpu.mig_enabled, gpu.mig) == (False, ())


def test_an_integrated_gpu_has_neither_minor_nor_bus_id() -> None:
    report = nvml._report(calls({"uuid": "54d0709b", "name": b"Orin (nvgpu)"}))

    (gpu,) = report.gpus
    assert (gpu.minor, gpu.bus_id, gpu.name) == (-1, "", "Orin (nvgpu)")
    assert report.warnings == ()


def test_one_gpu_that_is_lost_costs_itself_with_a_warning() -> None:
    lost: dict[str, object] = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}

    report = nvml._report(calls(lost, {"minor": 1, "uuid": "GPU-1", "name": "X"}))

    assert [gpu.index for gpu in report.gpus] == [1]
    assert report.warnings == ("NVML refuses GPU 0: nvmlDeviceGetHandleByIndex: gpu is lost",)


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

    (found,) = nvml._report(calls(gpu)).gpus

    assert found.coherent is coherent


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

    (found,) = nvml._report(calls(gpu)).gpus

    assert [mig.profile for mig in found.mig] == [shown]


def test_mig_devices_keep_their_index_across_gaps() -> None:
    first = {"uuid": "MIG-1", "gi": 7, "ci": 0, "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb"}
    other = {"uuid": "MIG-2", "gi": 2, "ci": 1, "name": "NVIDIA A30"}
    devices = {0: first, 3: other, 5: pynvml.NVML_ERROR_UNKNOWN}

    report = nvml._report(calls({"minor": 0, "uuid": "GPU-1", "name": "X", "mig": devices}))

    assert [(m.index, m.uuid, m.gi, m.ci, m.profile) for m in report.gpus[0].mig] == [
        (0, "MIG-1", 7, 0, "1g.10gb"),
        (3, "MIG-2", 2, 1, "1c.2g.20gb"),
    ]
    refused = "NVML refuses MIG device 0:5: nvmlDeviceGetMigDeviceHandleByIndex: unknown error"
    assert report.warnings == (refused,)


@pytest.mark.parametrize("content", [b"not a library", elf_bytes("x", "aarch64"), None])
def test_file_that_is_no_nvml_is_an_error_with_its_path(
    tmp_path: Path, content: bytes | None
) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    if content is not None:
        library.write_bytes(content)

    with pytest.raises(NvmlError, match=str(library)):
        LibraryNvml(str(library)).report()


def test_library_of_another_program_is_refused() -> None:
    with pytest.raises(NvmlError, match=r"nvmlInit of libc\.so\.6 failed: function not found"):
        LibraryNvml("libc.so.6").report()
