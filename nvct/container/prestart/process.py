# SPDX-License-Identifier: Apache-2.0
"""A container's process: its number is looked up once, and never stands for another process.

A number is free again when its process is gone. /proc/PID is opened once and everything else of
it by that descriptor: what is read belongs to that process, or the kernel says ESRCH.
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
        pid: its number, or "self".
    """

    __slots__ = ("_fd", "_pidfd", "pid")

    def __init__(self, pid: int | str, proc: str = PROC) -> None:
        """Open the process.

        Raises:
            HostError: there is none, or /proc shows another one under its number.
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
        """Check that the process is the one that has this number in our PID namespace.

        The kernel writes into the fdinfo of a pidfd which number the process has in the PID
        namespace of the procfs (since 5.3); a kernel or filter without pidfd_open has no check.

        Raises:
            HostError: it has ended, or /proc is that of another PID namespace.
        """
        open_pidfd = getattr(posix, "pidfd_open", None)
        if open_pidfd is None or not isinstance(self.pid, int):
            return
        try:
            self._pidfd = open_pidfd(self.pid)
        except ProcessLookupError as error:
            raise HostError(f"there is no process {self.pid}", hint=ENDED) from error
        except OSError:  # ENOSYS before 5.3, EPERM of a seccomp filter
            return
        with_fd = f"self/fdinfo/{self._pidfd}"
        self._check_number(_read(posix.open(f"{PROC}/{with_fd}", posix.O_RDONLY)))
        self.read("stat")  # both are alive under one number, hence one

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
            OSError: it cannot be opened, ESRCH where the process has ended.
        """
        return posix.open(name, posix.O_RDONLY, dir_fd=self._fd)

    def read(self, name: str) -> bytes:
        """Read one of the process's files.

        Raises:
            HostError: it cannot be read.
        """
        try:
            return _read(self.open(name))
        except OSError as error:
            raise HostError(
                f"{name} of process {self.pid} cannot be read: {error.strerror}", hint=ENDED
            ) from error

    def close(self) -> None:
        """Let go of the process."""
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
