# SPDX-License-Identifier: Apache-2.0
"""The sessions of this process: one for each library, however often a command asks NVML.

They are closed when the process ends. A process that stays does not use them: open handles keep
the driver's modules from being unloaded.
"""

from __future__ import annotations

import atexit
import os

from nvct.errors import NvmlError
from nvct.host.nvml.session import NvmlSession

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Identity: TypeAlias = tuple[int, int] | None

_SESSIONS: dict[str, tuple[Identity, NvmlSession]] = {}


def session(library: str) -> NvmlSession:
    """Return this process's session with a library: another one where the file was replaced.

    While a worker is stuck its session is returned for every library, and says so: another worker
    would wait for the same driver.
    """
    for _, other in _SESSIONS.values():
        if other.is_stuck:
            return other
    identity = _identity(library)
    known, current = _SESSIONS.get(library, (identity, None))
    if current is not None and known != identity:
        current.close()
        current = None
    if current is None:
        if not _SESSIONS:
            atexit.register(close)
        current = NvmlSession(library)
        _SESSIONS[library] = (identity, current)
    return current


def close() -> None:
    """Close all of them. A worker that does not end is left alone: there is nothing to be done."""
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
