# SPDX-License-Identifier: Apache-2.0
"""Announces a change of MIG to programs that offer devices, so that they withhold some.

The announcement is a file with a lock. It counts as long as its writer holds the lock, so a killed
writer leaves no device paused. Less privileged programs may change the folder: its files are read
with limits, and links in it are not followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from nvct.errors import HostError, OSErrorsAs, UnsafePathError
from nvct.kernel.shared_folder import SharedFolder

Instance: TypeAlias = tuple[int, int]
Paused: TypeAlias = Mapping[str, Collection[Instance]]

FILE = "mig-change.json"
LIMIT = 1 << 20  # Bytes of an announcement that are read
PAUSE_S = 1.0  # Time for a device plugin to notice, and to tell the kubelet
_own: set[str] = set()
"""Device and inode of the files of this process's own announcements."""
FOLDER_MODE = 0o700


@contextlib.contextmanager
def announce(folder: str, paused: Paused, wait_s: float = 0.0) -> Iterator[None]:
    """Announce a change while the context lasts.

    `paused` has, by the UUID of each GPU that changes, the MIG devices that stay (ids of GPU
    instance and compute instance). All other devices of these GPUs are paused. HostError if the
    file cannot be written; UnsafePathError if the folder is a link or a file.
    """
    with contextlib.ExitStack() as announced:
        with OSErrorsAs(HostError, f"a change of MIG cannot be announced in {folder}/{FILE}"):
            shared = announced.enter_context(SharedFolder.open(folder, create=FOLDER_MODE))
            fd = _write(shared, paused)
        announced.callback(_withdraw, shared, fd)
        time.sleep(wait_s)
        yield


def _write(shared: SharedFolder, paused: Paused) -> int:
    """Write an announcement, and return its locked file."""
    stays = {uuid: sorted(instances) for uuid, instances in paused.items()}
    temporary = shared.write_temporary(json.dumps(stays).encode())
    fd = shared.open_file(temporary)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _own.add(_identity(fd))  # before anybody can read it
        shared.put(temporary, FILE)
    except BaseException:
        _own.discard(_identity(fd))
        os.close(fd)
        raise
    return fd


def _withdraw(shared: SharedFolder, fd: int) -> None:
    with contextlib.suppress(OSError):  # another writer replaced or removed it
        shared.unlink(FILE)
    _own.discard(_identity(fd))
    os.close(fd)


def read(folder: str, *, of_others: bool = False) -> Paused:
    """Return the announced change, as `paused` of `announce`; {} without one.

    With `of_others`, this process's own announcements do not count.
    """
    try:
        with SharedFolder.open(folder) as shared:
            fd = shared.open_file(FILE)
    except (OSError, UnsafePathError):
        return {}
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        if of_others and _identity(fd) in _own:
            return {}
        with contextlib.suppress(OSError):
            return _parse(os.pread(fd, LIMIT, 0))
    except OSError:  # the file system has no locks, so nobody holds one
        pass
    finally:
        os.close(fd)
    return {}


def _identity(fd: int) -> str:
    status = os.fstat(fd)
    return f"{status.st_dev}:{status.st_ino}"


def _parse(data: bytes) -> Paused:
    try:
        return {
            str(uuid): frozenset((int(gi), int(ci)) for gi, ci in instances)
            for uuid, instances in json.loads(data).items()
        }
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return {}
