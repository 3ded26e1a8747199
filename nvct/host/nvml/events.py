# SPDX-License-Identifier: Apache-2.0
"""Verb events: the XID errors since the last question. Runs in the worker.

A separate thread waits for NVML's events, a second at a time, and the verb empties the thread's
list: no event is missed while other verbs run, and no verb waits for an event. The kernel's
messages are the second source (`kernel_xids`). The wait can go on even if the driver or a GPU
hangs, so the verb also asks each GPU for a value: that call hangs with the GPU.
"""

from __future__ import annotations

import threading
import time
from ctypes import c_void_p, cast
from itertools import count
from typing import Any, TypeAlias

from nvct.errors import NvmlError
from nvct.host.nvml import each_gpu
from nvct.host.nvml.calls import Calls, Handle, optional, reason, string
from nvct.host.nvml.kernel_xids import Bus, KernelXids, bus_of
from nvct.host.nvml.model import NvmlEvents, XidEvent

Totals: TypeAlias = dict[str, dict[tuple[int, int, int], tuple[int, float]]]

SINGLE_BIT_ECC, DOUBLE_BIT_ECC, XID = 0x1, 0x2, 0x8  # types of events, from nvml.h
WANTED = SINGLE_BIT_ECC | DOUBLE_BIT_ECC | XID
"""The same events as NVIDIA's device plugin; only XID errors are reported."""
SLICE_MS = 1000
WHOLE_GPU = 0xFFFFFFFF  # in place of the id of an instance (nvml.h, nvmlEventData_t)
LIMIT = 1000  # events that are kept; a GPU that fails reports the same XID many times
NUMBERS = count(1)


class Watch:
    """A running watch of all GPUs; NVMLError if NVML cannot create an event set."""

    def __init__(self, nvml: Calls) -> None:
        self.number = next(NUMBERS)
        # a reason for each GPU whose events NVML does not deliver, by UUID
        self.unwatched: dict[str, str] = {}
        self.failure = ""  # why the watch has ended, "" while it runs
        self.started = time.time()  # in seconds since 1970
        self._totals: Totals = {}
        self._nvml = nvml.copy()  # for the thread
        self._handles: dict[int, Handle] = {}
        self._uuids: dict[int | None, str] = {}  # a lost GPU does not report its UUID any more
        self._buses: dict[Bus, str] = {}
        self._kernel = KernelXids()
        self._events: list[XidEvent] = []
        self._lock = threading.Lock()
        self._set: Any = None
        self._no_events = ""
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError_NotSupported as error:  # no GPU here has events
            self._no_events = f"{nvml.last}: {reason(error)}"
        each_gpu.ask(nvml, self._register)
        if not self._no_events:
            threading.Thread(target=self._run, name="events", daemon=True).start()

    def probe(self, nvml: Calls) -> dict[str, str]:
        """Ask each GPU for its used memory (0.01 ms); return, by index, why a GPU is silent."""
        unanswered = each_gpu.ask(nvml, self._ask).unanswered
        return {str(index): why for index, why in unanswered.items()}

    def take(self) -> tuple[XidEvent, ...]:
        """Return the events since the last call."""
        with self._lock:
            self._take_kernel()
            taken, self._events = tuple(self._events), []
        return taken

    def totals(self, uuid: str) -> dict[tuple[int, int, int], tuple[int, float]]:
        """Return how often each XID occurred on a GPU, and when last (seconds since 1970).

        The keys are the XID, and the ids of GPU instance and compute instance, -1 for a whole GPU.
        """
        with self._lock:
            self._take_kernel()
            return dict(self._totals.get(uuid, {}))

    def _ask(self, nvml: Calls, index: int) -> None:
        """Ask a GPU for any value; register the GPU first if it hung until now."""
        if index not in self._handles:
            self._register(nvml, index)
        nvml.nvmlDeviceGetMemoryInfo(self._handles[index])

    def _register(self, nvml: Calls, index: int) -> None:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = string(nvml.nvmlDeviceGetUUID(handle))
        address = optional(nvml, lambda: string(nvml.nvmlDeviceGetPciInfo(handle).busId))
        if bus := bus_of(address or ""):
            self._buses[bus] = uuid
        try:
            if self._no_events:
                self.unwatched[uuid] = self._no_events
                return
            self._uuids[_address(handle)] = uuid
            types = WANTED & int(nvml.nvmlDeviceGetSupportedEventTypes(handle))
            nvml.nvmlDeviceRegisterEvents(handle, types, self._set)
        except nvml.NVMLError as error:
            self.unwatched[uuid] = f"{nvml.last}: {reason(error)}"
        finally:
            self._handles[index] = handle

    def _run(self) -> None:
        nvml = self._nvml
        try:
            while True:
                try:
                    data = nvml.nvmlEventSetWait_v2(self._set, SLICE_MS)
                except nvml.NVMLError_Timeout:
                    continue
                if data.eventType == XID:
                    self._add(data)
        except nvml.NVMLError as error:
            self.failure = f"{nvml.last} failed: {reason(error)}"

    def _add(self, data: Any) -> None:  # noqa: ANN401 - NVML's own type
        event = XidEvent(
            uuid=self._uuids.get(_address(data.device), ""),
            xid=int(data.eventData),
            gi=instance_id(data.gpuInstanceId),
            ci=instance_id(data.computeInstanceId),
        )
        with self._lock:
            if self._kernel.note_nvml(event):
                self._count(event)

    def _take_kernel(self) -> None:
        for event in self._kernel.take(self._buses):
            self._count(event)

    def _count(self, event: XidEvent) -> None:
        totals = self._totals.setdefault(event.uuid, {})
        key = (event.xid, event.gi, event.ci)
        totals[key] = (totals.get(key, (0, 0.0))[0] + 1, time.time())
        if event not in self._events[-1:] and len(self._events) < LIMIT:
            self._events.append(event)


_watch: Watch | None = None
_starting = threading.Lock()  # two verbs can want the watch at the same time


def events(nvml: Calls) -> NvmlEvents:
    """Return the events since the last question; the first question starts the watch.

    NvmlError if the watch has ended; the next question starts another one.
    """
    watch = current(nvml)
    unanswered = watch.probe(nvml)
    return NvmlEvents(
        watch=watch.number,
        events=watch.take(),
        unwatched=dict(watch.unwatched),
        unanswered=unanswered,
    )


def current(nvml: Calls) -> Watch:
    """Return the running watch; start one if there is none.

    NVMLError if NVML cannot create an event set; NvmlError if the watch has ended: the next call
    starts another one.
    """
    global _watch  # noqa: PLW0603 - one for each worker process, whose memory this is
    with _starting:
        if _watch is None:
            _watch = Watch(nvml)
        watch = _watch
        if watch.failure:
            _watch = None
            raise NvmlError(f"the watch for XID errors ended: {watch.failure}")
    return watch


def totals(uuid: str) -> dict[tuple[int, int, int], tuple[int, float]]:
    """Return the counts of a GPU's XIDs, as `Watch.totals`; {} without a watch."""
    watch = _watch
    return watch.totals(uuid) if watch else {}


def instance_id(number: int) -> int:
    """Return the id of a MIG instance, -1 for NVML's number of a whole GPU."""
    return -1 if number in (WHOLE_GPU, -1) else int(number)


def _address(handle: Handle) -> int | None:
    return cast(handle, c_void_p).value
