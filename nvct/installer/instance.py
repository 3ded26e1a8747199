# SPDX-License-Identifier: Apache-2.0
"""One installer at a time, known by a file with its process number, and ended by a signal.

Contract: the file's lock, not its content, says that one runs. A signal raises `Stopped` where
the program is, once; those after it are ignored, so that what is being taken back is not cut
short.
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
    """The program was told to end."""


class Instance:
    """The right to install, while it is held.

    Args:
        path: the file with the process number.

    Raises (on entering):
        HostError: another one runs, or the file cannot be made.
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
        """Lock the file; what another one wrote into it stays until the lock is ours."""
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(fd):
                    os.ftruncate(fd, 0)
                    os.write(fd, f"{os.getpid()}\n".encode())
                    self._fd, fd = fd, -1
                    return
            finally:
                if fd >= 0:
                    os.close(fd)

    def _is_there(self, fd: int) -> bool:
        """Tell whether the file that was opened still has its name: one that ended removed it."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self._path))
        except FileNotFoundError:
            return False


def wait() -> None:
    """Wait for a signal.

    Raises:
        Stopped: it came.
    """
    while True:
        signal.pause()


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped
