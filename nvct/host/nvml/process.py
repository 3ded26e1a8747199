# SPDX-License-Identifier: Apache-2.0
"""A child process that serves one socket: start, kill, wait.

The process is a fork without exec. It takes 20 ms of CPU up to its first answer, mostly for
nvidia-ml-py; a new interpreter takes 50 ms, where `nvidia-ctk cdi generate` takes 110. A fork also
finds its modules wherever this process found them. The fork keeps this process's memory,
environment and working directory, and closes its files.

A process with threads should not start one: another thread can hold a lock at that moment, which
no thread of the fork releases. The agents have a supervisor without threads for this.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import time
import warnings
from _socket import socket
from _thread import get_native_id
from collections.abc import Callable
from typing import NoReturn

from nvct.linux.deadline import Deadline

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
NAME = b"nvct-nvml"  # in ps and /proc/PID/comm; the kernel keeps 15 bytes
KILL_S = 2.0  # a process that lives longer after SIGKILL counts as waiting in the kernel
DEBUG_ENV = "NVCT_DEBUG"
PAUSE_S = 0.0005
PAUSE_MAX_S = 0.02


class WorkerProcess:
    """A child process, and this process's end of the socket that it serves.

    The child ends with its parent: because the socket is closed, and by a signal if the parent's
    main thread started it (the kernel sends the signal when the thread that forked ends).
    """

    def __init__(self, serve: Callable[[socket], None]) -> None:
        from _socket import socketpair

        self.killed = False  # whether it was sent SIGKILL
        # the pid of the process that started it: a fork of that process cannot wait for it
        self.parent = os.getpid()
        self._status: int | None = None
        self._is_reaped = False
        self.connection, worker_end = socketpair()
        in_main_thread = get_native_id() == self.parent
        # A signal handler of this process must not run in the child, where it could raise.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
                self.pid = os.fork()
            if not self.pid:
                _become_worker(serve, worker_end, in_main_thread=in_main_thread)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            worker_end.close()

    def has_ended(self) -> bool:
        """Return whether the process has ended; reap it if so."""
        if not self._is_reaped:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # reaped elsewhere, or by the kernel if SIGCHLD is ignored
                self._is_reaped = True
                return True
            if pid:
                self._is_reaped = True
                self._status = os.waitstatus_to_exitcode(status)
        return self._is_reaped

    def wait(self, limit_s: float) -> bool:
        """Wait for the end of the process; return whether it ended in time."""
        deadline = Deadline(limit_s, self.pid)
        pause_s = PAUSE_S
        while not self.has_ended():
            left_s = deadline.left_s()
            if not left_s:
                return self.has_ended()
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return True

    def kill(self) -> bool:
        """Close the socket and kill the process; return whether it ended within KILL_S.

        A process that waits in the kernel (state D) does not end.
        """
        self.connection.close()
        if not self.has_ended():
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)
        return self.wait(KILL_S)

    def ending(self) -> str:
        """Return how the process ended: a signal's name, or its exit status."""
        status = self._status
        if status is None:
            return "an unknown status"
        if status >= 0:
            return f"exit status {status}"
        names = {number.value: number.name for number in signal.Signals}
        return names.get(-status, f"signal {-status}")


def _become_worker(
    serve: Callable[[socket], None], connection: socket, *, in_main_thread: bool
) -> NoReturn:
    status = 1
    try:
        _prepare(in_main_thread=in_main_thread)
        serve(_without_other_files(connection))
        status = 0
    except BaseException:
        if DEBUG_ENV in os.environ:
            import traceback

            traceback.print_exc()
    finally:
        os._exit(status)


def _prepare(*, in_main_thread: bool) -> None:
    """Set the child's name and death signal; drop the parent's signal handlers and finalizers."""
    import ctypes  # nvidia-ml-py loads it anyway

    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_NAME, NAME)
    if in_main_thread:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # An object of the parent must not close its file here: another file can have that number.
    gc.freeze()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from the terminal: the parent decides
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _without_other_files(connection: socket) -> socket:
    """Close all files except a socket, which is returned; stdin, stdout and stderr: /dev/null."""
    from _socket import socket

    fd = fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1) if DEBUG_ENV in os.environ else (0, 1, 2):
        os.dup2(null, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (0, 1, 2, fd):
            try:
                os.close(number)
            except OSError:  # the descriptor of the folder itself, which listdir has closed
                pass
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - it stays open
    return socket(fileno=fd)
