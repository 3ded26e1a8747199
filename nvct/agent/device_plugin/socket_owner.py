# SPDX-License-Identifier: Apache-2.0
"""Finds the owner of one of the kubelet's sockets, so that no other program's plugin is displaced.

NVIDIA's plugin uses the same socket. An agent that cannot see the host's processes asks the NVML
worker for the owner.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from nvct.agent.nvml.host_verbs import SocketOwner
from nvct.errors import NvctError
from nvct.kernel.shared_folder import SharedFolder

Ask: TypeAlias = "Callable[[SocketOwner, type[Owner]], Awaitable[Owner]]"
"""The method `ask` of the `Host`."""
CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid and gid of the process that called listen(2)."""
PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that listens on a socket; pid 0 if its PID namespace cannot be seen here."""

    pid: int
    program: str

    def __str__(self) -> str:
        """Return its name in a sentence."""
        if not self.pid:
            return "a process of another container"
        return f"process {self.pid}{f' ({self.program})' if self.program else ''}"


def find(path: str) -> Owner | None:
    """Return the process that listens on a socket; None if there is none, or no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(0)
        try:
            connection.connect(path)
        except (BlockingIOError, PermissionError):  # its queue is full, or it is another user's
            return Owner(0, "")
        except OSError:
            return None
        size = CREDENTIALS.size
        pid, _, _ = CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
    return Owner(pid, _program(pid))


def find_in(folder: str, name: str) -> Owner:
    """Return the process that listens on a socket; safe in a folder that the agent can change."""
    try:
        with SharedFolder.open(folder) as opened, opened.socket_path(name) as path:
            return find(path) or Owner(0, "")
    except (OSError, NvctError):
        return Owner(0, "")


async def named(owner: Owner, path: str, ask: Ask | None) -> Owner:
    """Return the owner with its process, which `ask` finds if this process cannot see it."""
    if owner.pid or ask is None:
        return owner
    folder, name = os.path.split(path)
    is_registry = os.path.basename(folder) == "plugins_registry"
    with contextlib.suppress(NvctError, ValueError):
        call = SocketOwner(
            folder="plugins_registry" if is_registry else "device-plugins", name=name
        )
        return await ask(call, Owner)
    return owner


def _program(pid: int) -> str:
    try:
        with open(f"{PROC}/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return os.path.basename(words[0])
