# SPDX-License-Identifier: Apache-2.0
"""A library in Python, in place of nvidia-ml-py and libnvidia-ml.so."""

from types import ModuleType, SimpleNamespace

import pynvml


def error_class(code: object) -> type[Exception]:
    error_class: type[Exception] = pynvml.nvmlExceptionClass(code)  # type: ignore[no-untyped-call]
    return error_class


def nvml_error(code: object) -> Exception:
    return error_class(code)()


class PythonNvml(ModuleType):
    """The functions of pynvml that the verbs call, over a list of GPUs as dicts.

    Attributes:
        journal: nvmlInit and nvmlShutdown, as they were called.
    """

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
        self.journal: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        self.journal.append("init")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.journal.append("shutdown")

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
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
