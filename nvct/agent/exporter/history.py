# SPDX-License-Identifier: Apache-2.0
"""Counts over several samples: XIDs, reasons that limit clocks, traffic of NVLinks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from nvct.host.nvml.sample_model import GpuSample, NvmlSamples

Instance: TypeAlias = tuple[str, int]
"""UUID of a GPU and id of a GPU instance, -1 for the whole GPU."""

CLOCK_EVENTS = {
    "gpu_idle": 0x1, "clocks_setting": 0x2, "power_cap": 0x4, "hw_slowdown": 0x8,
    "sync_boost": 0x10, "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}  # fmt: skip
"""The names of dcgm-exporter for nvml.h's nvmlClocksEventReason*."""
RATED = ("nvlink_tx", "nvlink_rx")  # Totals that are shown as rates


@dataclass()
class History:
    """The counts since this process started."""

    # how often each XID occurred, by instance and XID, and when last (seconds since 1970)
    xids: dict[Instance, dict[int, tuple[int, float]]] = field(default_factory=dict)
    # how often a GPU did not answer, by index
    skipped: dict[str, int] = field(default_factory=dict)
    # the values of RATED a second, between the last two samples, by the GPU's UUID
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    _totals: dict[str, tuple[float, dict[str, float]]] = field(default_factory=dict)
    _watch: float = 0.0
    _seen: dict[tuple[str, int, int, int], int] = field(default_factory=dict)
    _recent_xids: deque[tuple[float, Instance, int, int]] = field(default_factory=deque)
    _recent_clocks: deque[tuple[float, str, int]] = field(default_factory=deque)

    def add(self, samples: NvmlSamples, now: float, keep_s: float) -> None:
        """Add samples; counts of windows forget what is older than keep_s seconds."""
        if samples.watch_start != self._watch:  # a new watch counts from 0
            self._watch = samples.watch_start
            self._seen.clear()
        for index in samples.unanswered:
            self.skipped[index] = self.skipped.get(index, 0) + 1
        for gpu in samples.gpus:
            self.skipped.setdefault(str(gpu.index), 0)  # a counter that begins with 1 has no rate
            for xid in gpu.xids:
                key = (gpu.uuid, xid.xid, xid.gi, xid.ci)
                new = xid.count - self._seen.get(key, 0)
                self._seen[key] = xid.count
                if new > 0:
                    where = gpu.uuid, xid.gi
                    counts = self.xids.setdefault(where, {})
                    counts[xid.xid] = (counts.get(xid.xid, (0, 0.0))[0] + new, xid.at)
                    self._recent_xids.append((now, where, xid.xid, new))
            self._add_rates(gpu, now)
            bits = int(gpu.values.get("clock_event_reasons", 0))
            self._recent_clocks.append((now, gpu.uuid, bits))
        for recent in (self._recent_xids, self._recent_clocks):
            while recent and recent[0][0] < now - keep_s:
                recent.popleft()

    def _add_rates(self, gpu: GpuSample, now: float) -> None:
        """Compute the rates since the previous sample; there is none if a total has been reset."""
        totals = {name: gpu.values[name] for name in RATED if name in gpu.values}
        then, before = self._totals.get(gpu.uuid, (now, {}))
        self._totals[gpu.uuid] = (now, totals)
        self.rates[gpu.uuid] = {
            name: (total - before[name]) / (now - then)
            for name, total in totals.items()
            if now > then and total >= before.get(name, total + 1)
        }

    def last_xid(self, uuid: str, gi: int) -> int:
        """Return the last XID of a GPU instance or its whole GPU; 0 if there was none."""
        found = [
            (at, xid)
            for where in {(uuid, gi), (uuid, -1)}
            for xid, (_, at) in self.xids.get(where, {}).items()
        ]
        return max(found)[1] if found else 0

    def xids_since(self, since: float, uuid: str, gi: int) -> Mapping[int, int]:
        """Return the number of each XID of an instance or its whole GPU since a time."""
        counts: dict[int, int] = {}
        for at, where, xid, new in self._recent_xids:
            if at >= since and where in ((uuid, gi), (uuid, -1)):
                counts[xid] = counts.get(xid, 0) + new
        return counts

    def clock_events_since(self, since: float, uuid: str) -> Mapping[str, int]:
        """Return in how many samples since a time each reason limited a GPU's clocks."""
        counts: dict[str, int] = {}
        for at, of, bits in self._recent_clocks:
            for name, bit in CLOCK_EVENTS.items() if at >= since and of == uuid else ():
                if bits & bit:
                    counts[name] = counts.get(name, 0) + 1
        return counts
