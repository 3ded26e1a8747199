# SPDX-License-Identifier: Apache-2.0
"""Tells systemd that this service is ready, or ends: sd_notify(3), without its library."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

READY, STOPPING = "READY=1", "STOPPING=1"
SOCKET_ENV = "NOTIFY_SOCKET"


def notify(env: Mapping[str, str], state: str) -> None:
    """Send a state; without a service manager, do nothing.

    Args:
        env: the environment, which names the socket: a path, or an abstract one after `@`.
        state: READY or STOPPING.
    """
    path = env.get(SOCKET_ENV, "")
    if path[:1] not in ("/", "@"):
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with (
        contextlib.suppress(OSError),  # the service manager is gone
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier,
    ):
        notifier.sendto(state.encode(), address)
