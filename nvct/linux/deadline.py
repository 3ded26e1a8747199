# SPDX-License-Identifier: Apache-2.0
"""Deadlines for what can hang. Time in which a process waits for a processor does not count.

On a busy node, a pod that requests no CPU gets a very small share of it. A process there can take
minutes for work that needs 0.1 s of CPU; it is slow, but it does not hang.
"""

from __future__ import annotations

import posix
import time

from nvct.linux.files import read_bytes

LOOK_S = 0.05  # between two looks at a process that may be waiting for a processor


class Deadline:
    """A deadline in `limit_s` seconds, and later if the process `pid` waits for a processor."""

    __slots__ = ("_former", "_is_last", "_pid", "_until")

    def __init__(self, limit_s: float, pid: int = 0) -> None:
        self._pid = pid
        self._until = time.monotonic() + limit_s
        self._former = Use(pid) if pid else None
        # Whether the process had run before the last look: if it has run again at the next one, it
        # is not waiting for a processor.
        self._is_last = False

    def left_s(self) -> float:
        """Return how many seconds are left until the deadline or the next look at it; 0: none."""
        left_s = self._until - time.monotonic()
        if left_s > 0 or self._former is None:
            return max(left_s, 0.0)
        former, self._former = self._former, Use(self._pid)
        self._until += max(0.0, self._former.waited_s - former.waited_s)
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            runs = self._former.ran_ns != former.ran_ns
            if not self._former.is_ready or (runs and self._is_last):
                return 0.0
            self._is_last = runs
        return max(left_s, LOOK_S)


class Use:
    """What the living threads of a process and its children have had of the processors.

    Zeros if the kernel does not tell. Source: /proc/PID/schedstat of
    Documentation/scheduler/sched-stats.rst.
    """

    __slots__ = ("is_ready", "ran_ns", "waited_s")

    def __init__(self, pid: int) -> None:
        self.is_ready = False  # whether a thread runs, or waits for a processor
        self.ran_ns = 0
        self.waited_s = 0.0  # the wait that has not ended is not in it
        try:
            for thread in posix.listdir(f"/proc/{pid}/task"):
                self._add(f"/proc/{pid}/task/{thread}")
        except OSError:  # it has ended
            pass

    def _add(self, folder: str) -> None:
        ran, waited, _ = map(int, _read(f"{folder}/schedstat").split() or (0, 0, 0))
        self.ran_ns += ran
        self.waited_s += waited / 1e9
        state = _read(f"{folder}/stat").rpartition(b")")[2].split()[:1]
        self.is_ready |= state == [b"R"] and ran > 0
        for child in _read(f"{folder}/children").split():
            use = Use(int(child))
            self.ran_ns += use.ran_ns
            self.waited_s += use.waited_s
            self.is_ready |= use.is_ready


def _read(path: str) -> bytes:
    """Return the bytes of a file, none if it cannot be read."""
    try:
        return read_bytes(path)
    except OSError:
        return b""
