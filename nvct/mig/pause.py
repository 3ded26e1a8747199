# SPDX-License-Identifier: Apache-2.0
"""Announces a change of MIG to programs that offer devices: which devices not to give now.

The announcement is a file with a lock. It counts as long as its writer holds the lock, so one that
was killed leaves no device paused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time

from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import TypeAlias

    Instance: TypeAlias = tuple[int, int]
    Paused: TypeAlias = Mapping[str, Collection[Instance]]

FILE = "mig-change.json"
PAUSE_S = 1.0
"""How long a device plugin may take to notice, and to tell the kubelet."""
_own: set[str] = set()
"""Files of this process's own announcements: a file that is replaced has another inode."""
FOLDER_MODE = 0o700


@contextlib.contextmanager
def announce(folder: str, paused: Paused, wait_s: float = 0.0) -> Iterator[None]:
    """Announce a change while the context lasts.

    Args:
        folder: that both sides know.
        paused: for each GPU that changes, by its UUID: the MIG devices that stay, by the ids of
            GPU instance and compute instance. All other devices of these GPUs are paused.
        wait_s: for the other side to see it.

    Raises:
        HostError: it cannot be written.
    """
    path = f"{folder}/{FILE}"
    try:
        fd = _write(folder, path, paused)
    except OSError as error:
        raise HostError(
            f"a change of MIG cannot be announced in {path}: {error.strerror}"
        ) from error
    try:
        time.sleep(wait_s)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # another announcement replaced it
            os.unlink(path)
        _own.discard(_identity(fd))
        os.close(fd)


def _write(folder: str, path: str, paused: Paused) -> int:
    """Write an announcement, and return its locked file.

    Raises:
        OSError: it cannot be written; nothing of it stays.
    """
    os.makedirs(folder, mode=FOLDER_MODE, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _own.add(_identity(fd))  # before anybody can read it
        stays = {uuid: sorted(instances) for uuid, instances in paused.items()}
        data = json.dumps(stays).encode()
        while data:
            data = data[os.write(fd, data) :]
        os.rename(temporary, path)
    except BaseException:
        _own.discard(_identity(fd))
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return fd


def read(folder: str, *, of_others: bool = False) -> Paused:
    """Return the change that is announced, as `announce` takes it; {} if there is none.

    Args:
        folder: of the announcement.
        of_others: leave out an announcement of this process.
    """
    try:
        fd = os.open(f"{folder}/{FILE}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        if of_others and _identity(fd) in _own:
            return {}
        return _parse(os.pread(fd, 1 << 20, 0))
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
    except (AttributeError, TypeError, ValueError):
        return {}
