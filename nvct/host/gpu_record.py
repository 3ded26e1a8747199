# SPDX-License-Identifier: Apache-2.0
"""Which containers have which GPU, since when: the NRI plugin's record, for ps and the exporter.

It is a file in NRI_DIR, replaced at each change. A plugin holds a shared lock as long as it runs.
Where nobody holds it, the record is of the past. Contract: a reader believes nothing else of the
file than texts and numbers, and a record that cannot be read counts as missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from nvct.errors import UnsafePathError
from nvct.kernel.shared_folder import SharedFolder
from nvct.paths import NRI_DIR
from nvct.typed import MalformedError, dump, load

NAME, LOCK = "containers.json", "lock"
LIMIT = 8 << 20
LAST_S = 1e11  # A time after it has no date that time.localtime knows everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A container with device nodes of GPUs."""

    id: str
    namespace: str
    pod: str
    container: str
    # seconds since 1970; 0.0 if it is older than the plugin, and the engine says no time
    since: float
    devices: tuple[str, ...]  # a name for each GPU or MIG device, its UUID where one is known
    numbers: tuple[tuple[int, int], ...]  # major and minor of the nodes

    @property
    def labels(self) -> dict[str, str]:
        """The names of the container, as `nvct.doctor.containers` has them."""
        return {"container": self.container, "namespace": self.namespace, "pod": self.pod}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the plugin knows; `decisions` are counted since it started, by outcome."""

    holdings: tuple[Holding, ...] = ()
    decisions: Mapping[str, int] = field(default_factory=dict)


def read(path: str = NRI_DIR, *, of_the_past: bool = False) -> Record | None:
    """Return the record; None without one, or, unless `of_the_past`, if no plugin runs."""
    try:
        with SharedFolder.open(path) as folder:
            if not of_the_past and not _is_locked(folder):
                return None
            record = load(Record, json.loads(folder.read(NAME, LIMIT)), NAME)
    except (OSError, UnsafePathError, MalformedError, ValueError, RecursionError):
        return None
    is_dated = all(0 <= each.since < LAST_S for each in record.holdings)
    return record if is_dated else None


def write(record: Record, path: str = NRI_DIR) -> None:
    """Replace the record; OSError or UnsafePathError if it cannot be written."""
    with SharedFolder.open(path, create=0o755) as folder:
        folder.write(NAME, json.dumps(dump(record)).encode())


def hold(path: str = NRI_DIR, name: str = LOCK, *, alone: bool = False) -> int:
    """Return the descriptor of a lock: by default that a plugin runs, which several can hold.

    BlockingIOError if another process holds it; OSError or UnsafePathError if it cannot be had.
    `alone`: nobody else can hold it.
    """
    with SharedFolder.open(path, create=0o755) as folder:
        with contextlib.suppress(FileExistsError):
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            os.close(os.open(name, flags, 0o600, dir_fd=folder.fd))
        fd = folder.open_file(name)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def drop(fd: int, name: str, path: str = NRI_DIR) -> None:
    """Give up a lock that was held alone, and remove its file."""
    with contextlib.suppress(OSError, UnsafePathError), SharedFolder.open(path) as folder:
        folder.unlink(name)
    os.close(fd)


def _is_locked(folder: SharedFolder) -> bool:
    fd = folder.open_file(LOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
