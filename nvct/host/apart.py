# SPDX-License-Identifier: Apache-2.0
"""A call in a process of its own: what it hangs in or dies of costs that process only.

Contract: the process has what this one had when it was started, and nothing that it changes is
changed here but what the call returns, or its error. Whatever becomes of this process, the other
one ends with it or at the time limit.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, TypeVar

    T = TypeVar("T")

PR_SET_PDEATHSIG = 1
KILL_S = 1.0


class DiedError(Exception):
    """The process was ended by a signal, whose name it has."""


def run(call: Callable[[], T], limit_s: float) -> T:
    """Return what a call returns in a process of its own.

    Raises:
        TimeoutError: the call is not done in time.
        DiedError: the process was ended by a signal, or ended itself.
        Exception: what the call raises.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Of threads: the process uses none of this one's locks but the interpreter's own.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os.close(reading)
        _work(call, writing)
    os.close(writing)
    try:
        data = _read(reading, time.monotonic() + limit_s)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        # One that hangs in the kernel does not end by that: it is not waited for for long.
        until = time.monotonic() + KILL_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.01)
        raise
    finally:
        os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise DiedError(signal.Signals(-status).name if status < 0 else f"exit status {status}")
    result, error = pickle.loads(data)  # noqa: S301  our own process's
    if error is not None:
        raise error
    found: T = result
    return found


def _work(call: Callable[[], object], writing: int) -> NoReturn:
    """Do the work of the process."""
    status = 1
    try:
        _end_with_parent()
        try:
            data = pickle.dumps((call(), None))
        except Exception as error:
            data = pickle.dumps((None, error))
        with open(writing, "wb") as file:
            file.write(data)
        status = 0
    finally:
        os._exit(status)


def _end_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(fd: int, until: float) -> bytes:
    data = bytearray()
    while True:
        if not select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            return bytes(data)
        data += chunk
