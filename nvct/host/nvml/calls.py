# SPDX-License-Identifier: Apache-2.0
"""NVML's functions in the worker: nvidia-ml-py over one library file, initialized once.

Contract: only this module and the modules of the verbs use pynvml. The library is loaded from the
driver root by its path, so that no other driver's library is loaded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from nvct.errors import HostError, NvctError, NvmlError
from nvct.kernel import trusted_file
from nvct.linux.deadline import Deadline

T = TypeVar("T")
Handle: TypeAlias = Any
Load: TypeAlias = Callable[[str], ModuleType]

HINTS = {
    "NVMLError_LibRmVersionMismatch": "reboot, or reload the nvidia modules",
    "NVMLError_DriverNotLoaded": "load the nvidia module: modprobe nvidia",
    "NVMLError_NoPermission": "run as root, or fix the modes of /dev/nvidia*",
}


def load(path: str) -> ModuleType:
    """Return pynvml with the functions of a library file; NvmlError if it cannot be loaded."""
    return _load(path, path)


def load_below(root: str, path: str) -> ModuleType:
    """Return what `load` returns, for a file below `root` that only the user root can change.

    NvmlError if other users can change the file, or it cannot be loaded.
    """
    try:
        fd = trusted_file.open_trusted(root, f"/{os.path.relpath(path, root)}")
    except (OSError, HostError) as error:
        hint = error.hint if isinstance(error, NvctError) else ""
        raise NvmlError(f"{path} cannot be loaded: {error}", hint=hint) from error
    # The descriptor stays open, so that the library's name leads to its file.
    return _load(f"/proc/self/fd/{fd}", path)


def _load(opened: str, path: str) -> ModuleType:
    import ctypes

    import pynvml

    try:
        library = ctypes.CDLL(opened)
    except OSError as error:
        raise NvmlError(
            f"{path} cannot be loaded: {error}", hint="is it for this machine's architecture?"
        ) from error
    # nvidia-ml-py has no parameter for the path, only this module variable. Its cache can have the
    # functions of an earlier library.
    pynvml.nvmlLib = library  # type: ignore[assignment]
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001 - see above
    return pynvml


class Calls:
    """The module pynvml, and the last function of NVML that was called. For one thread."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - a module, or a test's stand-in
        self.module = module
        self.last = ""  # the function's name, for an error: NVML's own text does not contain it
        self.deadline = Deadline(math.inf)  # for the answers of all GPUs

    def copy(self) -> Calls:
        """Return a new object with the same module, for another thread."""
        return Calls(self.module)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a module's members
        """Return a member of the module; a function of NVML sets `last` when it is called."""
        member = getattr(self.module, name)
        if not name.startswith("nvml"):
            return member

        def call(*args: Any) -> Any:  # noqa: ANN401 - NVML's own types
            self.last = name
            return member(*args)

        return call


class Driver:
    """One library file, loaded and initialized on the first request.

    After NVML refuses a request, the library is initialized again for the next one, because the
    driver has possibly been reloaded. While a thread is in a call of NVML, handles stay open.
    """

    def __init__(
        self, path: str, load: Load = load, is_hanging: Callable[[], bool] = lambda: False
    ) -> None:
        self._path = path
        self._load = load
        self._is_hanging = is_hanging
        self._nvml: Calls | None = None
        self._is_initialized = False

    def ask(
        self,
        question: Callable[..., object],
        arguments: dict[str, object],
        deadline: Deadline | None = None,
    ) -> object:
        """Return the result of a function that is called with `Calls` and the arguments.

        The session ends this process some time after the deadline. NvmlError
        if the library cannot be loaded or initialized, or refuses a call.
        """
        if self._nvml is None:
            self._nvml = Calls(self._load(self._path))
        nvml = self._nvml
        nvml.deadline = deadline or Deadline(math.inf)
        try:
            if not self._is_initialized:
                nvml.nvmlInit()
                self._is_initialized = True
                _return_free_memory()
            return question(nvml, **arguments)
        except nvml.NVMLError as error:
            failed = nvml.last
            self.shut_down()
            raise NvmlError(
                f"{failed} of {self._path} failed: {reason(error)}",
                hint=HINTS.get(type(error).__name__, ""),
            ) from error

    def shut_down(self) -> None:
        """Shut NVML down, which closes its handles, unless a thread is in a call of NVML."""
        nvml = self._nvml
        if nvml is not None and self._is_initialized and not self._is_hanging():
            self._is_initialized = False
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError:
                pass


def _return_free_memory() -> None:
    """Give the kernel memory that NVML's initialization has freed: 3.5 MiB with an H200."""
    import ctypes  # nvidia-ml-py loads it anyway

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
    if trim is not None:
        trim(0)


def optional(nvml: Calls, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - NVML's own types
    """Return a call's result, None if NVML refuses it or nvidia-ml-py lacks the function."""
    try:
        return call()
    except (nvml.NVMLError, AttributeError):
        return None


def mig_devices(nvml: Calls, gpu: Handle, ask: Callable[[Handle], T]) -> list[T]:
    """Return the results of `ask` for a GPU's MIG devices, except those that NVML refuses."""
    mode = optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(gpu)[0])
    if mode != nvml.NVML_DEVICE_MIG_ENABLE:
        return []

    def ask_one(index: int) -> T:
        return ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))

    count = optional(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)) or 0
    answers = (optional(nvml, partial(ask_one, index)) for index in range(count))
    return [answer for answer in answers if answer is not None]


def supported(nvml: Calls, call: Callable[[], Any], otherwise: Any) -> Any:  # noqa: ANN401 - NVML's own types
    """Return a call's result, or `otherwise` if the GPU does not support it."""
    try:
        return call()
    except nvml.NVMLError_NotSupported:
        return otherwise


def string(value: object) -> str:
    """Return a string of NVML; nvidia-ml-py before 12.535.77 returned bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def reason(error: Exception) -> str:
    """Return the text of an NVML error, for the end of a sentence."""
    return str(error).lower().rstrip(".")


class Reading:
    """The values of one device, and an error for each value that NVML refuses."""

    def __init__(self, nvml: Calls) -> None:
        self.nvml = nvml
        self.values: dict[str, float] = {}
        self.errors: dict[str, str] = {}

    def read(self, names: tuple[str, ...], call: Callable[[], Any]) -> None:
        """Add the values that a call returns, in the order of their names."""
        try:
            values = call()
        except AttributeError:
            self.refuse(names, "nvidia-ml-py is too old")
        except self.nvml.NVMLError as error:
            self.refuse(names, reason(error))
        else:
            for name, value in zip(names, values, strict=True):
                self.add(name, value)

    def add(self, name: str, value: float) -> None:
        """Add a value, or an error if it is not finite.

        If two samples are too close together, NVML returns NaN for performance metrics, not an
        error (driver 580.159.04, H200).
        """
        if math.isfinite(value):
            self.values[name] = value
        else:
            self.refuse((name,), f"NVML returns {value}")

    def number(self, name: str, function: str, *arguments: object) -> None:
        """Add the value that a function of NVML returns."""
        self.read((name,), lambda: (getattr(self.nvml, function)(*arguments),))

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        """Add an error for each name."""
        self.errors.update(dict.fromkeys(names, why))
