# SPDX-License-Identifier: Apache-2.0
"""Threads that use the library while another process changes the state."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from tests.support.nvml_node import NvmlNode


def test_readers_see_whole_states_while_a_writer_is_at_work(node: NvmlNode, nvml: Any) -> None:
    nvml.nvmlInit()
    gpu, library = nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlLib
    seen: set[tuple[int, int]] = set()
    done = threading.Event()

    def read() -> None:
        count, celsius = ctypes.c_uint(), ctypes.c_uint()
        while not done.is_set():
            codes = (
                library.nvmlDeviceGetTemperature(gpu, 0, ctypes.byref(celsius)),
                library.nvmlDeviceGetCount_v2(ctypes.byref(count)),
            )
            seen.add((sum(codes), count.value))

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    records = node.lines()
    for n in range(150):  # of different length, so that a torn read is noticed
        node.write(
            [*records, *(f"event\tseq={i}\tgpu=0\ttype=1\tdata=0" for i in range(n % 40 * 5))]
        )
    done.set()
    for reader in readers:
        reader.join()

    assert seen == {(0, 4)}
