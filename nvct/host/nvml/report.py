# SPDX-License-Identifier: Apache-2.0
"""Verbs for discovery. They run in the worker.

report: versions, GPUs and their MIG devices. properties: brand, architecture and addressing mode
of each GPU.
"""

from __future__ import annotations

from functools import partial

from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, optional, reason, string, supported
from nvct.host.nvml.model import GpuProperties, NvmlGpu, NvmlMig, NvmlReport
from nvct.host.procfs import canonical_bus_id

# nvml.h: the profiles whose GPU instances can use the parent's DRM nodes.
GRAPHICAL_PROFILES = tuple(
    f"NVML_GPU_INSTANCE_PROFILE_{slices}_SLICE_GFX" for slices in (1, 2, 3, 4)
)


def report(nvml: Calls, *, complete: bool = False) -> NvmlReport:
    """Return what NVML reports about this machine; a GPU that NVML refuses is a warning.

    A GPU that hangs is in `unanswered`; if the report must be `complete`, it is an NvmlError.
    """
    answers = each_gpu.ask(nvml, _gpu, complete=complete)
    warnings = [f"NVML refuses GPU {index}: {why}" for index, why in answers.refused.items()]
    for _, of_mig in answers.values.values():
        warnings += of_mig
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    return NvmlReport(
        driver_version=string(nvml.nvmlSystemGetDriverVersion()),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(gpu for gpu, _ in answers.values.values()),
        warnings=tuple(warnings),
        unanswered={str(index): why for index, why in answers.unanswered.items()},
    )


def _gpu(nvml: Calls, index: int) -> tuple[NvmlGpu, list[str]]:
    """Return a GPU, and a warning for each MIG device that NVML refuses."""
    warnings: list[str] = []
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    enabled = mode == nvml.NVML_DEVICE_MIG_ENABLE
    gpu = NvmlGpu(
        index=index,
        minor=int(supported(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle), -1)),
        uuid=string(nvml.nvmlDeviceGetUUID(handle)),
        bus_id=canonical_bus_id(
            string(supported(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId, ""))
        ),
        name=string(nvml.nvmlDeviceGetName(handle)),
        mig_enabled=enabled,
        mig=_mig_devices(nvml, handle, index, warnings) if enabled else (),
        coherent=_coherent(nvml, handle),
    )
    return gpu, warnings


def _coherent(nvml: Calls, handle: Handle) -> bool | None:
    """Return whether the addressing mode is ATS: address translation by the hardware.

    A driver or GPU without addressing modes is not coherent, as in go-nvlib.
    """
    try:
        return bool(
            nvml.nvmlDeviceGetAddressingMode(handle) == nvml.NVML_DEVICE_ADDRESSING_MODE_ATS
        )
    except (AttributeError, nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return False
    except nvml.NVMLError:
        return None


def _mig_devices(
    nvml: Calls, parent: Handle, parent_index: int, warnings: list[str]
) -> tuple[NvmlMig, ...]:
    devices = []
    graphical = _graphical_profiles(nvml, parent)
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            gi = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
            profile = mig_profile(nvml, handle)
            if graphical and "+" not in profile and _profile_id(nvml, parent, gi) in graphical:
                profile += "+gfx"
            devices.append(
                NvmlMig(
                    index=index,
                    uuid=string(nvml.nvmlDeviceGetUUID(handle)),
                    gi=gi,
                    ci=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
                    profile=profile,
                )
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # the numbers of MIG devices can have gaps
        except nvml.NVMLError as error:
            device = f"{parent_index}:{index}"
            warnings.append(f"NVML refuses MIG device {device}: {nvml.last}: {reason(error)}")
    return tuple(devices)


def _graphical_profiles(nvml: Calls, parent: Handle) -> set[int]:
    def ask(name: str) -> int:
        return int(nvml.nvmlDeviceGetGpuInstanceProfileInfo(parent, getattr(nvml, name)).id)

    ids = (optional(nvml, partial(ask, name)) for name in GRAPHICAL_PROFILES)
    return {number for number in ids if number is not None}


def _profile_id(nvml: Calls, parent: Handle, gi: int) -> int | None:
    """Return the id of a GPU instance's profile, None if NVML does not report it.

    A MIG device without a profile id counts as one without graphics.
    """

    def ask() -> int:
        instance = nvml.nvmlDeviceGetGpuInstanceById(parent, gi)
        return int(nvml.nvmlGpuInstanceGetInfo(instance).profileId)

    profile: int | None = optional(nvml, ask)
    return profile


def mig_profile(nvml: Calls, handle: Handle) -> str:
    """Return a profile such as 1g.10gb, from the end of the device's name, else its attributes."""
    name = optional(nvml, lambda: string(nvml.nvmlDeviceGetName(handle))) or ""
    _, mig, profile = name.rpartition(" MIG ")
    if mig:
        return profile.strip()
    attributes = optional(nvml, lambda: nvml.nvmlDeviceGetAttributes(handle))
    if attributes is None:
        return ""
    slices = int(attributes.gpuInstanceSliceCount)
    compute = int(attributes.computeInstanceSliceCount)
    gigabytes = (int(attributes.memorySizeMB) + 1023) // 1024
    text = f"{slices}g.{gigabytes}gb"
    return text if compute == slices else f"{compute}c.{text}"


# By NVML's number, in the spelling of libnvidia-container, which ignores case when it compares:
# CUDA images have conditions on "tesla", "geforcertx", "nvidiartx".
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC",
    "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia",
    "GeForceRTX", "TitanRTX",
)  # fmt: skip

ADDRESSING = ("None", "HMM", "ATS")
"""The names of NVML_DEVICE_ADDRESSING_MODE_*, by number, as NVIDIA's DRA driver writes them."""


def properties(nvml: Calls, *, complete: bool = False) -> dict[str, GpuProperties]:
    """Return the properties of each GPU by its UUID; a GPU without a UUID is left out."""
    return dict(each_gpu.ask(nvml, _properties_of, complete=complete).values.values())


def _properties_of(nvml: Calls, index: int) -> tuple[str, GpuProperties]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = string(nvml.nvmlDeviceGetUUID(handle))
    brand = optional(nvml, partial(nvml.nvmlDeviceGetBrand, handle))
    capability = optional(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
    # A lambda, because an old nvidia-ml-py lacks the function, which `optional` catches.
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetAddressingMode(handle))
    return uuid, GpuProperties(
        brand="" if brand is None else BRANDS[brand if 0 <= brand < len(BRANDS) else 0],
        arch="" if capability is None else f"{capability[0]}.{capability[1]}",
        addressing="" if mode not in range(len(ADDRESSING)) else ADDRESSING[mode],
    )
