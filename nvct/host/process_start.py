# SPDX-License-Identifier: Apache-2.0
"""When a process started: to tell whether a file is younger than the daemon that read it."""

from __future__ import annotations

import os
import time

from nvct.host import procfs

CLOCK_TICK_S = 0.05
"""A process's start is known to ticks of the kernel's clock; files' times are finer."""
OWN_PROC = "/proc"


def started(pid: int, proc: str = OWN_PROC) -> float | None:
    """Return when a process started, in seconds since the epoch; None if that is unknown.

    Exact to a tick; of another host's recorded procfs to a second, and then not too early.
    """
    # proc_pid_stat(5): field 22, counted behind the name, which may hold spaces and brackets.
    fields = (procfs.read_text(f"{proc}/{pid}/stat") or "").rpartition(")")[2].split()
    boot = _boot() if proc == OWN_PROC else _recorded_boot(proc)
    if boot is None or len(fields) < 20 or not fields[19].isdecimal():
        return None
    return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _boot() -> float:
    # A pause between the two clocks makes the difference too small, never too large.
    return max(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) for _ in range(5))


def _recorded_boot(proc: str) -> float | None:
    """Return the end of the second that `btime` of proc_stat(5) names."""
    for line in (procfs.read_text(f"{proc}/stat") or "").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1]) + 1.0
    return None
