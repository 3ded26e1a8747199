# SPDX-License-Identifier: Apache-2.0
"""Signals the processes of a program, in a pod whose containers share their processes."""

from __future__ import annotations

import os

from nvct.host import procfs

WORDS = 5
"""Of a command line, in which a program's name can be: python -I -m MODULE NAME."""


def of_program(name: str, proc: str = "/proc") -> list[int]:
    """Return the processes that run a program; not those that it has forked."""
    found = [
        int(entry)
        for entry in procfs.list_directory(proc)
        if entry.isdigit() and int(entry) != os.getpid() and _runs(f"{proc}/{entry}", name)
    ]
    return [pid for pid in found if procfs.parent(f"{proc}/{pid}") not in found]


def send(name: str, number: int) -> int:
    """Send a signal to a program's processes; return how many there are."""
    count = 0
    for pid in of_program(name):
        try:
            os.kill(pid, number)
            count += 1
        except (ProcessLookupError, PermissionError):
            continue  # it has just ended, or is another user's of the same name
    return count


def _runs(path: str, name: str) -> bool:
    words = (procfs.read_text(f"{path}/cmdline") or "").split("\0")[:WORDS]
    return any(os.path.basename(word) == name for word in words)
