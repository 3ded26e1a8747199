# SPDX-License-Identifier: Apache-2.0
"""Which containers have which GPU, since when: the NRI plugin's record, for ps and the exporter.

The record is a file in NRI_DIR, replaced at each change. A plugin holds a shared lock as long as
it runs; while nobody holds the lock, the record is out of date. Contract: a reader takes only
texts and numbers from the file, and a record that cannot be read counts as missing.
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
LAST_S = 1e11  # time.localtime fails for a later time on some machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A container with device nodes of GPUs."""

    id: str
    namespace: str
    pod: str
    container: str
    # seconds since 1970; 0.0 if the container is older than the plugin, and the engine has no time
    since: float
    devices: tuple[str, ...]  # a name for each GPU or MIG device: its UUID if that is known
    numbers: tuple[tuple[int, int], ...]  # major and minor of the nodes

    @property
    def labels(self) -> dict[str, str]:
        """The names of the container, as `nvct.doctor.containers` has them."""
        return {"container": self.container, "namespace": self.namespace, "pod": self.pod}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the plugin knows; `decisions` counts them by outcome, since the plugin started."""

    holdings: tuple[Holding, ...] = ()
    decisions: Mapping[str, int] = field(default_factory=dict)


def read(path: str = NRI_DIR, *, of_the_past: bool = False) -> Record | None:
    """Return the record; None if there is none, or if no plugin runs (unless `of_the_past`)."""
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
    """Take a lock and return its descriptor; by default the shared lock of a running plugin.

    `alone` takes the lock exclusively. BlockingIOError if another process holds it; OSError or
    UnsafePathError if the lock file cannot be opened.
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
    """Release an exclusive lock, and remove its file."""
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
