# SPDX-License-Identifier: Apache-2.0
"""Ensures that one installer runs at a time; a file has its process number; signals end it.

Contract: the file's lock, not its content, shows that an installer runs. The first signal raises
`Stopped`; later ones are ignored, so that they do not interrupt the undo.
"""

from __future__ import annotations

import fcntl
import os
import signal

from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from typing_extensions import Self

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)


class Stopped(BaseException):
    """The program got a signal to end."""


class Instance:
    """The lock that an installer holds.

    Args:
        path: the file with the process number.

    Raises (on entering):
        HostError: another installer runs, or the file cannot be created.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            self._take()
        except BlockingIOError as error:
            raise HostError(
                f"another installer runs: it holds {self._path}", hint="end it first"
            ) from error
        except OSError as error:
            raise HostError(f"{self._path} cannot be made: {error.strerror}") from error
        for number in SIGNALS:
            signal.signal(number, _stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        os.close(self._fd)

    def _take(self) -> None:
        """Lock the file; its content is changed only after that."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._has_name(fd):
                    os.ftruncate(fd, 0)
                    os.write(fd, f"{os.getpid()}\n".encode())
                    self._fd, fd = fd, -1
                    return
            finally:
                if fd >= 0:
                    os.close(fd)

    def _has_name(self, fd: int) -> bool:
        """Report whether the open file still has its name: an installer removes it at its end."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._path))
        except FileNotFoundError:
            return False


def wait() -> None:
    """Wait for a signal.

    Raises:
        Stopped: always.
    """
    while True:
        signal.pause()


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    for signal_number in SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)
    raise Stopped
