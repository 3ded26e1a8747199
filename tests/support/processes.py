# SPDX-License-Identifier: Apache-2.0
"""Programs that a test runs; what a running process and its descendants cost, by /proc."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def captured(
    command: Sequence[str | Path], *, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; return its status, and its output as text."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in family(child))]


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its descendants that run."""
    stats = [
        Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in family(pid)
    ]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS


def pss_kib(pid: int) -> float:
    """Return the proportional set size of one process, in KiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return float(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])


def name_of(pid: int) -> str:
    """Return the name of a process, of at most 15 bytes."""
    return Path(f"/proc/{pid}/comm").read_text().strip()
