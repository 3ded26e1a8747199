# SPDX-License-Identifier: Apache-2.0
"""Ensures that one installer runs at a time; a file has its process number; signals end it.

Contract: the file's lock, not its content, shows that an installer runs. It belongs where only
root writes: in the agent's folder, the agent's container could hold it. The first signal raises
`Stopped`; later ones are ignored, so that they do not interrupt the undo.
"""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType

from typing_extensions import Self

from nvct.errors import HostError, UnsafePathError
from nvct.kernel.shared_folder import SharedFolder
from nvct.linux.files import split

TRIES = 3
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM)


class Stopped(BaseException):
    """The program got a signal to end."""


class Instance:
    """The lock that an installer holds.

    Raises (on entering):
        HostError: another installer runs, or the file cannot be created, as where a link is.
        UnsafePathError: the folder is a link or a file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder, self._name = split(path)
        self._fd = -1

    def __enter__(self) -> Self:
        try:
            with SharedFolder.open(self._folder, create=0o755) as folder:
                # Another one that ends just now removes the file, and a new one is made.
                tries = (folder.try_lock(self._name) for _ in range(TRIES))
                self._fd = next((fd for fd in tries if fd >= 0), -1)
            if self._fd >= 0:
                os.ftruncate(self._fd, 0)
                os.write(self._fd, f"{os.getpid()}\n".encode())
        except OSError as error:
            raise HostError(f"{self._path} cannot be made: {error.strerror}") from error
        if self._fd < 0:
            raise HostError(f"another installer runs: it holds {self._path}", hint="end it first")
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
        with (
            contextlib.suppress(OSError, UnsafePathError),
            SharedFolder.open(self._folder) as folder,
        ):
            folder.unlink(self._name)
        os.close(self._fd)


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
