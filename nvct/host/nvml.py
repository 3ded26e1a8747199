# SPDX-License-Identifier: Apache-2.0
"""NVML behind one protocol: what procfs does not tell, above all the UUIDs of MIG devices.

Contract: the only importer of pynvml. The library is loaded from the driver root by its path, so
that no other driver's is picked up. Calls are made in a process of their own: they may hang with
the driver, or crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from nvct.errors import NvmlError
from nvct.host import apart
from nvct.host.procfs import canonical_bus_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TypeAlias, TypeVar

    Handle: TypeAlias = Any
    Properties: TypeAlias = dict[str, str]
    T = TypeVar("T")

# nvml.h: those whose GPU instances may use the parent's DRM nodes.
GRAPHICAL_PROFILES = tuple(
    f"NVML_GPU_INSTANCE_PROFILE_{slices}_SLICE_GFX" for slices in (1, 2, 3, 4)
)
# As libnvidia-container writes them, whose comparison ignores case: CUDA images have conditions on
# "tesla", "geforcertx", "nvidiartx".
BRANDS = (
    "Unknown", "Quadro", "Tesla", "NVS", "GRID", "GeForce", "Titan", "NvidiaVApps", "NvidiaVPC",
    "NvidiaVCS", "NvidiaVWS", "NvidiaCloudGaming", "QuadroRTX", "NvidiaRTX", "Nvidia",
    "GeForceRTX", "TitanRTX",
)  # fmt: skip
# Eight GPUs that nothing else uses take some twenty seconds to start.
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlMig:
    """A MIG device as NVML tells."""

    index: int
    uuid: str
    gi: int
    ci: int
    profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """A GPU as NVML tells; bus_id as sysfs writes it.

    Attributes:
        minor: -1, and bus_id "", where the GPU has none: an integrated one of a Jetson.
        coherent: whether CPU and GPU share one address space, by the hardware; None where NVML
            does not tell.
    """

    index: int
    minor: int
    uuid: str
    bus_id: str
    name: str
    mig_enabled: bool = False
    mig: tuple[NvmlMig, ...] = ()
    coherent: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """What one round of NVML calls found; a warning for each thing that it refused."""

    driver_version: str
    cuda_version: str
    gpus: tuple[NvmlGpu, ...] = ()
    warnings: tuple[str, ...] = ()


class Nvml(Protocol):
    """A source of NvmlReport."""

    def report(self) -> NvmlReport:
        """Return what NVML tells about this machine.

        Raises:
            NvmlError: NVML does not work at all.
        """
        ...


class LibraryNvml:
    """NVML through nvidia-ml-py and one library file, in another process at each call."""

    def __init__(self, library: str, limit_s: float = LIMIT_S) -> None:
        """Remember the library's path; nothing is loaded yet.

        Args:
            library: its path.
            limit_s: how long a call may take.
        """
        self.path = library
        self.limit_s = limit_s

    def report(self) -> NvmlReport:
        """Initialize NVML, ask it for everything and shut it down.

        Raises:
            NvmlError: the library cannot be loaded or initialized, hangs or crashes.
        """
        return self._asked(_report)

    def check(self) -> None:
        """Initialize NVML and shut it down.

        Raises:
            NvmlError: the library cannot be loaded or initialized, hangs or crashes.
        """
        self._asked(_nothing)

    def properties(self) -> dict[str, Properties]:
        """Return brand and architecture of each GPU by its UUID, what NVML tells of them.

        Raises:
            NvmlError: the library cannot be loaded or initialized, hangs or crashes.
        """
        return self._asked(_properties)

    def _asked(self, ask: Callable[[Calls], T]) -> T:
        try:
            return apart.run(partial(self._ask, ask), self.limit_s)
        except TimeoutError as error:
            raise NvmlError(
                f"NVML does not answer within {self.limit_s:g} s: {self.path}",
                hint="dmesg tells which GPU hangs",
            ) from error
        except apart.DiedError as error:
            raise NvmlError(
                f"NVML crashed with {error}: {self.path}", hint="install the driver again"
            ) from error

    def _ask(self, ask: Callable[[Calls], T]) -> T:
        nvml = Calls(self._load())
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise _error(self.path, nvml.last, error) from error
        try:
            return ask(nvml)
        except nvml.NVMLError as error:
            raise _error(self.path, nvml.last, error) from error
        finally:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                pass

    def _load(self) -> ModuleType:
        import ctypes

        import pynvml

        try:
            library = ctypes.CDLL(self.path)
        except OSError as error:
            raise NvmlError(
                f"{self.path} cannot be loaded: {error}", hint="is it of this machine's kind?"
            ) from error
        # nvidia-ml-py has no parameter for the path: its module variable is the way, and its
        # cache of functions belongs to the library before.
        pynvml.nvmlLib = library  # type: ignore[assignment]
        pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - see above
        return pynvml


class Calls:
    """The module pynvml, and which of NVML's functions was called last.

    Attributes:
        last: its name, for an error: NVML's own text does not say what failed.
    """

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - a module, or a test's stand-in
        """Keep the module."""
        self._module = module
        self.last = ""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a module's members
        """Return a member of the module; a function of NVML tells that it is called."""
        member = getattr(self._module, name)
        if not name.startswith("nvml"):
            return member

        def call(*args: Any) -> Any:  # noqa: ANN401 - NVML's own types
            self.last = name
            return member(*args)

        return call


def _nothing(_nvml: Calls) -> None:
    """Ask nothing."""


def _properties(nvml: Calls) -> dict[str, Properties]:
    found: dict[str, Properties] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = _optional(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index))
        uuid = handle and _optional(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
        if not uuid:
            continue
        known = found[_string(uuid)] = {}
        brand = _optional(nvml, partial(nvml.nvmlDeviceGetBrand, handle))
        if brand is not None:
            known["brand"] = BRANDS[brand] if 0 <= brand < len(BRANDS) else BRANDS[0]
        arch = _optional(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
        if arch is not None:
            known["arch"] = f"{arch[0]}.{arch[1]}"
    return found


def _report(nvml: Calls) -> NvmlReport:
    warnings: list[str] = []
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(nvml, index, warnings))
        except nvml.NVMLError as error:
            warnings.append(f"NVML refuses GPU {index}: {nvml.last}: {_text(error)}")
    cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
    return NvmlReport(
        driver_version=_string(nvml.nvmlSystemGetDriverVersion()),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=tuple(gpus),
        warnings=tuple(warnings),
    )


def _gpu(nvml: Calls, index: int, warnings: list[str]) -> NvmlGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = _optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    enabled = mode == nvml.NVML_DEVICE_MIG_ENABLE
    return NvmlGpu(
        index=index,
        minor=int(_supported(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle), -1)),
        uuid=_string(nvml.nvmlDeviceGetUUID(handle)),
        bus_id=canonical_bus_id(
            _string(_supported(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId, ""))
        ),
        name=_string(nvml.nvmlDeviceGetName(handle)),
        mig_enabled=enabled,
        mig=_mig_devices(nvml, handle, index, warnings) if enabled else (),
        coherent=_coherent(nvml, handle),
    )


def _coherent(nvml: Calls, handle: Handle) -> bool | None:
    """Return whether the addressing mode is ATS: address translation by the hardware.

    As go-nvlib: a driver or GPU that has no addressing modes is not coherent.
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
    found = []
    graphical = _graphical_profiles(nvml, parent)
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            gi = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
            profile = _profile(nvml, handle)
            if graphical and "+" not in profile and _profile_id(nvml, parent, gi) in graphical:
                profile += "+gfx"
            found.append(
                NvmlMig(
                    index=index,
                    uuid=_string(nvml.nvmlDeviceGetUUID(handle)),
                    gi=gi,
                    ci=int(nvml.nvmlDeviceGetComputeInstanceId(handle)),
                    profile=profile,
                )
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # a gap: MIG devices need not be numbered without holes
        except nvml.NVMLError as error:
            device = f"{parent_index}:{index}"
            warnings.append(f"NVML refuses MIG device {device}: {nvml.last}: {_text(error)}")
    return tuple(found)


def _graphical_profiles(nvml: Calls, parent: Handle) -> set[int]:
    """Return the ids that a GPU has for its profiles with graphics; most GPUs have none."""

    def ask(name: str) -> int:
        return int(nvml.nvmlDeviceGetGpuInstanceProfileInfo(parent, getattr(nvml, name)).id)

    found = (_optional(nvml, partial(ask, name)) for name in GRAPHICAL_PROFILES)
    return {number for number in found if number is not None}


def _profile_id(nvml: Calls, parent: Handle, gi: int) -> int | None:
    """Return the id of a GPU instance's profile, None where NVML does not tell it to us.

    Without it a MIG device counts as one without graphics.
    """

    def ask() -> int:
        instance = nvml.nvmlDeviceGetGpuInstanceById(parent, gi)
        return int(nvml.nvmlGpuInstanceGetInfo(instance).profileId)

    found: int | None = _optional(nvml, ask)
    return found


def _profile(nvml: Calls, handle: Handle) -> str:
    """Return e.g. 1g.10gb: the end of the device's name, or made of its attributes."""
    name = _optional(nvml, lambda: _string(nvml.nvmlDeviceGetName(handle))) or ""
    _, mig, profile = name.rpartition(" MIG ")
    if mig:
        return profile.strip()
    attributes = _optional(nvml, lambda: nvml.nvmlDeviceGetAttributes(handle))
    if attributes is None:
        return ""
    slices = int(attributes.gpuInstanceSliceCount)
    compute = int(attributes.computeInstanceSliceCount)
    gigabytes = (int(attributes.memorySizeMB) + 1023) // 1024
    text = f"{slices}g.{gigabytes}gb"
    return text if compute == slices else f"{compute}c.{text}"


def _optional(nvml: Calls, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - NVML's own types
    try:
        return call()
    except (nvml.NVMLError, AttributeError):
        return None


def _supported(nvml: Calls, call: Callable[[], Any], otherwise: Any) -> Any:  # noqa: ANN401 - NVML's own types
    """Return what NVML tells, the other value where the GPU has no such thing."""
    try:
        return call()
    except nvml.NVMLError_NotSupported:
        return otherwise


def _string(value: object) -> str:
    # nvidia-ml-py before 12.535.77 returned bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _text(error: Exception) -> str:
    return str(error).lower().rstrip(".")


def _error(library: str, what: str, error: Exception) -> NvmlError:
    hints = {
        "NVMLError_LibRmVersionMismatch": "reboot, or reload the nvidia modules",
        "NVMLError_DriverNotLoaded": "load the nvidia module: modprobe nvidia",
        "NVMLError_NoPermission": "run as root, or fix the modes of /dev/nvidia*",
    }
    return NvmlError(
        f"{what} of {library} failed: {_text(error)}", hint=hints.get(type(error).__name__, "")
    )
