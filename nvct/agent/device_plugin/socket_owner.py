# SPDX-License-Identifier: Apache-2.0
"""Finds the owner of a resource's socket, so that no other program's living plugin is displaced.

NVIDIA's plugin uses the same socket. An older instance of nvct's plugin gives way to a newer one;
it is known by a method of its own, which no other program answers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from dataclasses import dataclass

from nvct.agent.device_plugin.endpoint import Identity, identity
from nvct.agent.kubelet import service

ENDING_S = 3.0
"""How long an owner that is ending may take."""
POLL_S = 0.1
CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid and gid of the process that called listen(2)."""
PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that listens on a socket.

    Attributes:
        pid: 0 if it is in a PID namespace that this process cannot see.
        program: its name, "" if that is unknown.
    """

    pid: int
    program: str

    def __str__(self) -> str:
        """Return what a sentence calls it."""
        if not self.pid:
            return "a process of another container"
        return f"process {self.pid}{f' ({self.program})' if self.program else ''}"


def find(path: str) -> Owner | None:
    """Return the process that listens on a socket; None if there is none, or no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0)
        try:
            connection.connect(path)
        except (BlockingIOError, PermissionError):  # it is full, or of another user
            return Owner(0, "")
        except OSError:
            return None
        size = CREDENTIALS.size
        pid, _, _ = CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
    return Owner(pid, _program(pid))


async def other(path: str) -> tuple[Owner | None, Identity]:
    """Return the other program's process that serves a socket, None if the socket can be had.

    An owner that is ending is waited for.

    Returns:
        The owner, and the identity of the file that was judged.
    """
    end = time.monotonic() + ENDING_S
    while True:
        judged = identity(path)
        owner = find(path)
        if owner is None or owner.pid == os.getpid() or await service.is_nvct(path):
            return None, judged
        if time.monotonic() > end:
            return owner, judged
        await asyncio.sleep(POLL_S)


def _program(pid: int) -> str:
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return os.path.basename(words[0])
