# SPDX-License-Identifier: Apache-2.0
"""Limits that hold on a busy machine, too; what hangs meets pytest's timeout."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the block, with the programs that it runs to their ends, takes more CPU time."""
    before = _spent()
    yield
    spent = _spent() - before
    assert spent < seconds, f"{spent:.2f} s of CPU time"


def _spent() -> float:
    """Return the CPU seconds of this process and of children that it has waited for."""
    return sum(os.times()[:4])


class Limit:
    """A limit in seconds of an idle machine: what waits with many others has as much longer."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._at = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Report whether the time is up; to be asked at each look."""
        now = time.monotonic()
        self._left_s -= (now - self._at) * _share()
        self._at = now
        return self._left_s < 0


def _share() -> float:
    """Return how much of a processor each process gets that is ready to run, 1 at most."""
    with open("/proc/loadavg", encoding="ascii") as file:
        ready = int(file.read().split()[3].partition("/")[0])
    return min(1.0, len(os.sched_getaffinity(0)) / max(ready, 1))


@contextlib.contextmanager
def starved() -> Iterator[None]:
    """Give what this process starts within the block almost no processor, as on a busy node."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    busy = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, every)


LOOP = "i=0; while [ $i -lt 6000 ]; do i=$((i+1)); done"
"""Work of some milliseconds of a processor, for a shell."""
NICE = (
    "renice -n 19 $$ > /dev/null; [ ! -e /proc/self/autogroup ] || echo 19 > /proc/self/autogroup"
)
"""What makes a shell wait for every other process, also for those of its user's other sessions."""
