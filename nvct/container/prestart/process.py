# SPDX-License-Identifier: Apache-2.0
"""A process that is opened by its PID once, so that a reused PID cannot stand for another one.

The kernel reuses the PID of an ended process. /proc/PID is opened once, and its files by that
descriptor: their content belongs to that process, or the kernel returns ESRCH.
"""

from __future__ import annotations

import posix

from nvct.errors import DocumentError, HostError
from nvct.linux.files import read_all

PROC = "/proc"
LIMIT = 64 << 20
ENDED = "has the container's process ended?"


class Process:
    """One process.

    Attributes:
        pid: its PID, or "self".
    """

    __slots__ = ("_fd", "_pidfd", "pid")

    def __init__(self, pid: int | str, proc: str = PROC) -> None:
        """Open the process.

        Raises:
            HostError: /proc/PID cannot be opened.
        """
        self.pid = pid
        self._pidfd = -1
        try:
            self._fd = posix.open(f"{proc}/{pid}", posix.O_PATH | posix.O_DIRECTORY)
        except OSError as error:
            raise HostError(
                f"{proc}/{pid} cannot be opened: {error.strerror}", hint=ENDED
            ) from error

    def hold(self) -> None:
        """Check that the process has this PID in our PID namespace, and hold a pidfd.

        The fdinfo of a pidfd has the PID of the process in the PID namespace of the procfs (since
        Linux 5.3). Without pidfd_open (old kernel, seccomp filter) there is no check.

        Raises:
            HostError: the process has ended, or /proc belongs to another PID namespace.
        """
        open_pidfd = getattr(posix, "pidfd_open", None)
        if open_pidfd is None or not isinstance(self.pid, int):
            return
        try:
            self._pidfd = open_pidfd(self.pid)
        except ProcessLookupError as error:
            raise HostError(f"there is no process {self.pid}", hint=ENDED) from error
        except OSError:  # ENOSYS before Linux 5.3, EPERM from a seccomp filter
            return
        with_fd = f"self/fdinfo/{self._pidfd}"
        self._check_number(_read(posix.open(f"{PROC}/{with_fd}", posix.O_RDONLY)))
        self.read("stat")  # both are alive with the same PID, so they are one process

    def _check_number(self, fdinfo: bytes) -> None:
        shown = fdinfo.partition(b"\nPid:")[2].split(None, 1)[:1]
        if shown == [b"-1"]:
            raise HostError(f"process {self.pid} has ended", hint=ENDED)
        if shown and shown != [str(self.pid).encode()]:
            raise HostError(
                f"{PROC} does not show process {self.pid}: it is of another PID namespace",
                hint="mount -t proc proc /proc where the container runtime runs",
            )

    def open(self, name: str) -> int:
        """Open one of the process's files.

        Raises:
            OSError: the file cannot be opened; ESRCH if the process has ended.
        """
        return posix.open(name, posix.O_RDONLY, dir_fd=self._fd)

    def read(self, name: str) -> bytes:
        """Read one of the process's files.

        Raises:
            HostError: the file cannot be read.
        """
        try:
            return _read(self.open(name))
        except OSError as error:
            raise HostError(
                f"{name} of process {self.pid} cannot be read: {error.strerror}", hint=ENDED
            ) from error

    def close(self) -> None:
        """Close the descriptors of the process."""
        for fd in (self._fd, self._pidfd):
            if fd >= 0:
                posix.close(fd)
        self._fd = self._pidfd = -1


def _read(fd: int) -> bytes:
    try:
        data = read_all(fd, 0, LIMIT)
    finally:
        posix.close(fd)
    if data is None:
        raise DocumentError(f"a file of procfs is larger than {LIMIT} bytes")
    return data
