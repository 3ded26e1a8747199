# SPDX-License-Identifier: Apache-2.0
"""Deadlines for what can hang. Time in which a process waits for a processor does not count.

On a busy node, a pod that requests no CPU gets a very small share of it. A process there can take
minutes for work that needs 0.1 s of CPU; it is slow, but it does not hang.
"""

from __future__ import annotations

import posix
import time
from _thread import get_native_id

from nvct.linux.files import read_bytes

PARTS = 20  # of a limit: after each, there is a look at the process
THREADS = 512  # that a look is for; with more, all time counts
TICK_S = 0.01  # of the times in /proc: USER_HZ of x86 and arm


class Deadline:
    """A deadline in `limit_s` seconds, and later if the process `pid` waits for a processor.

    If a thread of the process or its children is ready to run at a look, only the time in which
    they did run counts: what loops ends, too. A look counts one part at most, as its caller may
    have waited for a processor itself.
    """

    __slots__ = ("_counts_s", "_next", "_part_s", "_pid", "_ran_s")

    def __init__(self, limit_s: float, pid: int = 0) -> None:
        self._pid = pid
        self._counts_s = limit_s
        self._part_s = limit_s / PARTS
        self._next = time.monotonic() + self._part_s
        self._ran_s: float | None = None

    def left_s(self) -> float:
        """Return how many seconds are left until the next call; 0 if the deadline has passed."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._counts_s -= self._counted_s()
        if self._counts_s < self._part_s / 2:
            self._counts_s = 0.0
            return 0.0
        self._next = now + self._part_s
        return self._part_s

    def _counted_s(self) -> float:
        use = Use(self._pid) if self._pid else None
        if use is None or not use.is_ready:
            return self._part_s
        ran_s = use.ran_s if self._ran_s is None else self._ran_s
        self._ran_s = use.ran_s
        return min(self._part_s, max(0.0, use.ran_s - ran_s))


class Use:
    """Whether a process or a child of it could run, and how long they have run, also ended ones.

    The thread that asks is left out. Source: proc(5).
    """

    __slots__ = ("is_ready", "ran_s", "threads")

    def __init__(self, pid: int) -> None:
        self.is_ready = False  # whether a thread runs, or waits for a processor
        self.ran_s = 0.0
        self.threads = 0
        try:
            is_own = posix.readlink("/proc/self") == str(posix.getpid())
        except OSError:
            is_own = False
        pids = [pid] if is_own else []  # the processes of another pid namespace are others
        while pids and self.threads < THREADS:
            pids += self._add(pids.pop())
        self.is_ready &= self.threads < THREADS

    def _add(self, pid: int) -> list[int]:
        """Add a process; return its children."""
        children: list[int] = []
        # utime and stime, then those of the children that it has waited for.
        self.ran_s += sum(map(int, _stat(f"/proc/{pid}")[11:15])) * TICK_S
        try:
            threads = posix.listdir(f"/proc/{pid}/task")
        except OSError:  # it has ended
            return children
        own = str(get_native_id())
        for thread in threads:
            folder = f"/proc/{pid}/task/{thread}"
            self.threads += 1
            self.is_ready |= thread != own and _stat(folder)[:1] == [b"R"]
            children += map(int, _read(f"{folder}/children").split())
        return children


def _stat(folder: str) -> list[bytes]:
    """Return the fields of a process or thread from its state on; none if it has ended."""
    return _read(f"{folder}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    """Return the bytes of a file, none if it cannot be read."""
    try:
        return read_bytes(path)
    except OSError:
        return b""
