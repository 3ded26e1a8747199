# SPDX-License-Identifier: Apache-2.0
"""Keeps each call of NVML that a process makes, and refuses those that change a card.

`install` puts it into the unpacked nvidia-ml-py of a record, so that every process of the record
that asks NVML, the agents' too, goes through it.
"""

import ctypes
import functools
import inspect
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

LOG_ENV = "NVCT_GPU_NVML_LOG"
"""The file that gets a line of JSON for each call; without it, calls are not kept."""
READS = re.compile(
    r"nvml(Init(_v2|WithFlags)?|Shutdown|ErrorString"
    r"|(System|Device|Unit|GpuInstance|ComputeInstance|Gpm|GpmMig)?(Get|Is|Query)[A-Z]\w*"
    r"|EventSet(Create|Free|Wait(_v\d)?)|DeviceRegisterEvents"  # of this process alone
    r"|GpmSample(Alloc|Free|Get)|GpmMigSampleGet|GpmMetricsGet)"
)
"""The functions of nvml.h that read; every other one is refused."""
PRIVATE = re.compile(r"Serial|Pdi|UUIDInt|Certificate|Attestation|Hostname|PlatformInfo")
"""Functions whose answers would tell which card it is; they are called, the answer is left out."""
LINE = "\nfrom tests.gpu import nvml_calls as _kept; _kept.guard(sys.modules[__name__])\n"
DEPTH = 6


class CardWouldChangeError(Exception):
    """A function of NVML was called that may change a card."""


def install(pynvml: Path) -> None:
    """Append to nvidia-ml-py's file what makes it call `guard`; twice is the same as once."""
    text = pynvml.read_text(encoding="utf-8")
    if LINE not in text:
        pynvml.write_text(text + LINE, encoding="utf-8")


def guard(module: ModuleType) -> None:
    """Make a loaded nvidia-ml-py refuse all that does not read, and keep calls and answers."""
    pointer = module._nvmlGetFunctionPointer

    def checked(name: str) -> Any:
        if not READS.fullmatch(name):
            raise CardWouldChangeError(f"{name} may change the card: a record only reads")
        return pointer(name)

    module._nvmlGetFunctionPointer = checked  # type: ignore[attr-defined]
    path = os.environ.get(LOG_ENV)
    if path:
        for name, function in vars(module).copy().items():
            if READS.fullmatch(name) and inspect.isfunction(function):
                setattr(module, name, _kept(function, path))


def _kept(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return a function that appends its calls to a file."""

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        entry: dict[str, Any] = {"call": function.__name__}
        since = time.perf_counter()
        try:
            answer = function(*args, **named)
        except Exception as error:
            entry["error"] = f"{type(error).__name__}: {error}"
            raise
        else:
            is_private = PRIVATE.search(function.__name__)
            entry["answer"] = "(left out)" if is_private else plain(answer)
            return answer
        finally:
            entry["ms"] = round(1000 * (time.perf_counter() - since), 3)
            entry["args"] = [plain(arg) for arg in args]
            with open(path, "a", encoding="utf-8") as log:  # a worker closes inherited files
                log.write(json.dumps(entry) + "\n")

    return call


def plain(value: Any, depth: int = DEPTH) -> Any:
    """Return a value of ctypes or Python as JSON data; handles and pointers are left out."""
    if hasattr(value, "_obj"):  # byref(value), which the call has filled
        value = value._obj
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth == 0 or isinstance(value, (ctypes._Pointer, type)):
        return f"({type(value).__name__})"
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        fields = [field[0] for base in reversed(type(value).__mro__)
                  for field in base.__dict__.get("_fields_", ())]  # fmt: skip
        return {name: plain(getattr(value, name), depth - 1) for name in fields}
    if hasattr(value, "__dict__"):
        return {name: plain(member, depth - 1) for name, member in vars(value).items()}
    return plain(getattr(value, "value", str(type(value).__name__)), depth - 1)
