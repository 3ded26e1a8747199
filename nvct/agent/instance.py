# SPDX-License-Identifier: Apache-2.0
"""One agent serves a node: a lock, and how a newer instance takes it over.

The instance that serves holds the lock and answers on the socket. A newer one asks it to yield,
takes the lock, and serves. The older one keeps running without tasks until it is stopped: if it
ended, its container would be started again, and would ask in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time

from nvct.agent import status
from nvct.errors import HostError

FOLDER = "/run/nvct-agent"
"""Not in /run/nvct: a container with the agent must not write the plans that the shim trusts."""
LOCK, SOCKET = "agent.lock", "agent.sock"
YIELD_S = 15.0
"""How long the older instance may take to end its tasks."""
POLL_S = 0.05


class Instance:
    """This process's part in the choice of the one that serves.

    Attributes:
        socket: path of the socket of the instance that serves.
    """

    def __init__(self, folder: str = FOLDER) -> None:
        """Use the files in a folder, which is made if it is missing."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.socket = f"{folder}/{SOCKET}"
        self._path = f"{folder}/{LOCK}"
        self._fd = -1

    async def take(self) -> None:
        """Take the lock; an older instance is asked to yield.

        Raises:
            HostError: it does not.
        """
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + YIELD_S
        is_asked = False
        while not self._try():
            if not is_asked:
                with contextlib.suppress(OSError):
                    await status.ask(self.socket, "POST", "/yield")
                    is_asked = True
            if time.monotonic() > end:
                os.close(self._fd)
                raise HostError(
                    f"another agent holds {self._path} and does not yield",
                    hint="stop it, or see what it does: its /status",
                )
            await asyncio.sleep(POLL_S)

    def release(self) -> None:
        """Let another instance serve."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
