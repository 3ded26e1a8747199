# SPDX-License-Identifier: Apache-2.0
import ctypes
import threading
import time
from typing import Any

import pynvml

from tests.support.nvml_node import NvmlNode, code_of, gpu_uuid


def event_set(nvml: Any, *indices: int) -> Any:
    events = nvml.nvmlEventSetCreate()
    for index in indices:
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceRegisterEvents(gpu, nvml.nvmlEventTypeXidCriticalError, events)
    return events


def test_an_event_set_delivers_events_after_its_creation(node: NvmlNode, nvml: Any) -> None:
    node.add("event\tseq=1\tgpu=0\ttype=8\tdata=13")
    nvml.nvmlInit()
    events = event_set(nvml, 0, 2)
    node.add("event\tseq=2\tgpu=1\ttype=8\tdata=79", "event\tseq=3\tgpu=2\ttype=1\tdata=0")
    node.add("event\tseq=4\tgpu=2\ttype=8\tdata=79", "event\tseq=5\tgpu=0\ttype=8\tdata=31\tgi=7")

    first, second = (nvml.nvmlEventSetWait_v2(events, 1000) for _ in range(2))

    assert nvml.nvmlDeviceGetUUID(first.device) == gpu_uuid(2)
    assert (first.eventType, first.eventData, first.gpuInstanceId) == (8, 79, 0xFFFFFFFF)
    assert nvml.nvmlDeviceGetUUID(second.device) == gpu_uuid(0)
    assert (second.eventData, second.gpuInstanceId) == (31, 7)
    assert code_of(nvml.nvmlEventSetWait_v2, events, 0) == nvml.NVML_ERROR_TIMEOUT


def test_waiting_ends_when_an_event_comes(node: NvmlNode, nvml: Any) -> None:
    nvml.nvmlInit()
    events = event_set(nvml, 1)
    later = threading.Timer(0.1, node.add, ["event\tseq=1\tgpu=1\ttype=8\tdata=48"])
    start = time.monotonic()
    later.start()

    data = nvml.nvmlEventSetWait_v2(events, 200_000)

    later.join()
    assert data.eventData == 48
    assert time.monotonic() - start < 100


def test_the_old_wait_writes_no_further_than_the_old_struct(node: NvmlNode, nvml: Any) -> None:
    nvml.nvmlInit()
    events = event_set(nvml, 0)
    node.add("event\tseq=1\tgpu=0\ttype=8\tdata=79")
    data = pynvml.c_nvmlEventData_t()
    data.gpuInstanceId = data.computeInstanceId = 4711

    assert nvml.nvmlLib.nvmlEventSetWait(events, ctypes.byref(data), 100) == 0

    assert (data.eventData, data.gpuInstanceId, data.computeInstanceId) == (79, 4711, 4711)


def test_a_freed_event_set_and_an_unknown_type_are_refused(nvml: Any) -> None:
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    events = event_set(nvml, 0)
    assert nvml.nvmlDeviceGetSupportedEventTypes(gpu) & nvml.nvmlEventTypeXidCriticalError
    assert code_of(nvml.nvmlDeviceRegisterEvents, gpu, 1 << 40, events) == 2
    assert code_of(nvml.nvmlDeviceRegisterEvents, gpu, nvml.nvmlEventTypePState, events) == 3

    nvml.nvmlEventSetFree(events)

    assert code_of(nvml.nvmlEventSetWait_v2, events, 0) == nvml.NVML_ERROR_INVALID_ARGUMENT


# Threads that use the library while another process changes the state.


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
