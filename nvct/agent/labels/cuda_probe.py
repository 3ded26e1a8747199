# SPDX-License-Identifier: Apache-2.0
"""Asks CUDA for its GPUs, on machines without NVML (Tegra): a program that prints JSON.

It runs as a process of its own, because CUDA cannot be unloaded and can hang.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
NAME_LENGTH = 96
MAJOR, MINOR = 75, 76  # cuda.h, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
MIB = 1 << 20


class CudaError(Exception):
    """A call of CUDA has failed."""


def probe(cuda: Any) -> dict[str, Any]:  # noqa: ANN401 - a library
    """Return the version of CUDA and its GPUs; CudaError if a call fails."""

    def call(name: str, *arguments: object) -> None:
        result = getattr(cuda, name)(*arguments)
        if result:
            raise CudaError(f"{name} has failed with {result}")

    call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    gpus = []
    for index in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        memory, name = ctypes.c_size_t(), ctypes.create_string_buffer(NAME_LENGTH)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, NAME_LENGTH, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        call("cuDeviceGetAttribute", ctypes.byref(major), MAJOR, device)
        call("cuDeviceGetAttribute", ctypes.byref(minor), MINOR, device)
        gpus.append(
            {
                "name": name.value.decode(errors="replace"),
                "memory_mib": memory.value // MIB,
                "compute": [major.value, minor.value],
            }
        )
    return {"version": version.value, "gpus": gpus}


def main() -> int:
    """Print CUDA's version and GPUs, or an error; return an exit status."""
    try:
        sys.stdout.write(json.dumps(probe(ctypes.CDLL(LIBRARY))))
    except (OSError, AttributeError, CudaError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
