# SPDX-License-Identifier: Apache-2.0
"""Folders in memory: tests write many small files, many of them synchronously.

A file system on a disk takes four times as long for them, most of it in the kernel.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHM = "/dev/shm"
DISK = "/tmp"
NEEDED = 4 << 30
"""Bytes that must be free; a whole run keeps one gigabyte until it ends."""
LIMITS = os.ST_NODEV | os.ST_NOEXEC | os.ST_NOSUID
IDMAPPED = (6, 3)
"""The first Linux with idmapped mounts of a tmpfs."""


def root() -> str:
    """Return the folder for temporary files: in memory if tests can do there what a disk allows."""
    try:
        found = os.statvfs(SHM)
        meminfo = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return DISK
    kernel = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    available = re.search(r"^MemAvailable: +(\d+) kB$", meminfo, re.MULTILINE)
    free = min(found.f_bavail * found.f_frsize, int(available[1]) << 10 if available else 0)
    usable = os.access(SHM, os.W_OK) and not found.f_flag & LIMITS and kernel >= IDMAPPED
    return SHM if usable and free >= NEEDED else DISK


ROOT = root()


@contextlib.contextmanager
def in_memory(instead: Path) -> Iterator[Path]:
    """Yield a folder in memory, or `instead` if there is none."""
    if not os.access(SHM, os.W_OK):
        yield instead
        return
    with tempfile.TemporaryDirectory(dir=SHM) as made:
        yield Path(made)
