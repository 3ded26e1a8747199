# SPDX-License-Identifier: Apache-2.0
"""The process of a container, in whatever PID namespace /proc shows.

In a new PID namespace that still has the host's /proc, /proc/N is not this namespace's process N:
it may belong to another container. A pidfd is opened by the number in this namespace
(pidfd_open(2)); its fdinfo has the number of that process in /proc.
"""

from __future__ import annotations

import errno
import os
import signal

from nvct.errors import HostError

HINT = "mount -t proc proc /proc in this PID namespace"


class Process:
    """A process of this PID namespace; `number` is its number in /proc, 0 if `pid` is 0."""

    __slots__ = ("_fd", "number", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = self.number = pid
        self._fd = -1
        if not pid:
            return
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            self._without_pidfd(error)
            return
        try:
            self.number = _number(self._fd)
        except (OSError, ValueError) as error:
            raise self._unseen() from error
        if self.number <= 0:
            raise self._unseen()

    def _without_pidfd(self, error: OSError) -> None:
        """Accept the number if /proc shows this PID namespace; for Linux before 5.3."""
        if error.errno == errno.ESRCH:
            raise self._not_running() from error
        try:
            is_own_proc = os.readlink("/proc/self") == str(os.getpid())
        except OSError:
            is_own_proc = False
        if not is_own_proc:
            raise self._unseen() from error

    def _unseen(self) -> HostError:
        self.close()
        return HostError(f"/proc does not show process {self.pid}", hint=HINT)

    def _not_running(self) -> HostError:
        return HostError(
            f"there is no process {self.pid}", hint="has the container's process ended?"
        )

    def check(self) -> None:
        """Raise HostError if the process has ended: its files in /proc may be another's then."""
        if self._fd < 0:
            return
        try:
            signal.pidfd_send_signal(self._fd, 0)
        except PermissionError:  # runs, as another user
            return
        except OSError as error:
            raise self._not_running() from error

    def close(self) -> None:
        """Close the pidfd."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _number(fd: int) -> int:
    """Return `Pid:` of a pidfd's fdinfo: the number in /proc, 0 if not visible, -1 if ended."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key == "Pid":
                return int(value)
    return 0
