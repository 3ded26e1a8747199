# SPDX-License-Identifier: Apache-2.0
"""The NVML sessions of this process: one for each library.

They are closed when the process ends. A long-lived process does not use them: open handles keep
the driver's modules from being unloaded.
"""

from __future__ import annotations

import atexit
import os
from typing import TypeAlias

from nvct.errors import NvmlError
from nvct.host.nvml.session import NvmlSession

Identity: TypeAlias = tuple[int, int] | None

_SESSIONS: dict[str, tuple[Identity, NvmlSession]] = {}


def session(library: str) -> NvmlSession:
    """Return this process's session with a library; a new one if the file was replaced.

    While a worker is stuck, its session is returned for every library: another worker would wait
    for the same driver.
    """
    for _, open_session in _SESSIONS.values():
        if open_session.is_stuck:
            return open_session
    identity = _identity(library)
    previous, current = _SESSIONS.get(library, (identity, None))
    if current is not None and previous != identity:
        current.close()
        current = None
    if current is None:
        if not _SESSIONS:
            atexit.register(close)
        current = NvmlSession(library)
        _SESSIONS[library] = (identity, current)
    return current


def close() -> None:
    """Close all sessions. A worker that does not end is left alone."""
    atexit.unregister(close)
    while _SESSIONS:
        _, (_, current) = _SESSIONS.popitem()
        try:
            current.close()
        except NvmlError:
            pass


def _identity(path: str) -> Identity:
    """Return device and inode of a file, None if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
