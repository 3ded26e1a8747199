# SPDX-License-Identifier: Apache-2.0
"""Use every visible GPU by calls of the CUDA driver: copy memory to it and back.

Runs inside a container, by the host's interpreter: the standard library is all there is.
"""

import ctypes
import os
import sys

SIZE = 64 << 20


class Cuda:
    """libcuda; a failed call ends the program with the call's name and CUDA's error."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, function: str, *args: object) -> None:
        status = getattr(self.library, function)(*args)
        if status:
            name = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(name))
            sys.exit(f"{function} failed: {status} {(name.value or b'').decode()}")


def copy(cuda: Cuda, ordinal: int) -> str:
    """Copy random bytes to a GPU and back; return its name."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(256)
    cuda.call("cuDeviceGet", ctypes.byref(device), ordinal)
    cuda.call("cuDeviceGetName", name, len(name), device)
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    memory, size = ctypes.c_uint64(), ctypes.c_size_t(SIZE)
    cuda.call("cuMemAlloc_v2", ctypes.byref(memory), size)
    there = ctypes.create_string_buffer(os.urandom(SIZE), SIZE)
    back = ctypes.create_string_buffer(SIZE)
    cuda.call("cuMemcpyHtoD_v2", memory, there, size)
    cuda.call("cuMemcpyDtoH_v2", back, memory, size)
    cuda.call("cuMemFree_v2", memory)
    cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    if there.raw != back.raw:
        sys.exit(f"GPU {ordinal} gave other bytes back")
    return name.value.decode()


def main() -> None:
    cuda = Cuda()
    cuda.call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    cuda.call("cuDriverGetVersion", ctypes.byref(version))
    cuda.call("cuDeviceGetCount", ctypes.byref(count))
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = sorted({text.split()[-1] for text in maps if "libcuda.so" in text})
    print(f"CUDA {version.value // 1000}.{version.value % 1000 // 10} from {', '.join(loaded)}")
    for ordinal in range(count.value):
        name = copy(cuda, ordinal)
        print(f"CUDA device {ordinal}, {name}: {SIZE >> 20} MiB there and back, the same bytes")
    print(f"CUDA devices: {count.value}")


if __name__ == "__main__":
    main()
