# SPDX-License-Identifier: Apache-2.0
"""Reloads an engine from a container: by a signal to the socket's owner, or by systemd."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nvct.engine import modules, reload
from nvct.engine.command import Run
from nvct.engine.reload import Reload, Reloader
from nvct.errors import EngineError

ATTEMPTS = 6
PAUSE_S = 5.0
ANSWER_S = 5.0
END_S = 30.0
UCRED = struct.Struct("iII")
# An HTTP/2 preface with empty settings (RFC 9113, 3.4): gRPC servers answer with theirs.
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
MESSAGES = {"containerd": HTTP2, "docker": b"GET /_ping HTTP/1.0\r\n\r\n"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often and how long to wait for an engine."""

    attempts: int = ATTEMPTS
    pause_s: float = PAUSE_S
    end_s: float = END_S
    sleep: Callable[[float], None] = time.sleep


def hang_up(engine: str, path: str, patience: Patience, proc: str = "/proc") -> None:
    """Send SIGHUP to an engine; if that ends it, wait for its end.

    Raises:
        EngineError: nothing or another program answers there.
    """
    reason = ""
    for attempt in range(patience.attempts):
        if attempt:
            patience.sleep(patience.pause_s)
        try:
            _hang_up(engine, path, patience, proc)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return
    raise EngineError(
        f"{engine} does not answer on {path}: {reason}",
        hint="name its socket by --socket, or tell it another way: --restart-mode=systemd",
    )


def peer(engine: str, path: str) -> int:
    """Return the process that answers on an engine's socket, 0 if it is not visible here.

    Raises:
        OSError: nothing answers.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        connection.settimeout(ANSWER_S)
        connection.connect(path)
        connection.sendall(MESSAGES[engine])
        _, parts, _, _ = connection.recvmsg(1024, socket.CMSG_SPACE(UCRED.size))
    for level, kind, data in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid: int = UCRED.unpack(data[: UCRED.size])[0]
            return pid
    raise OSError(0, "the kernel does not report its process")


def _hang_up(engine: str, path: str, patience: Patience, proc: str) -> None:
    pid = peer(engine, path)
    if pid <= 0:
        raise EngineError(
            f"{engine} answers on {path}, but its process is not visible here",
            hint="share the host's process IDs: hostPID in a pod, --pid=host with docker",
        )
    process = os.pidfd_open(pid)
    try:
        _check_name(engine, path, pid, proc)
        signal.pidfd_send_signal(process, signal.SIGHUP)
        if engine == "containerd":  # SIGHUP ends it, and its service manager starts it again
            waiting = select.poll()
            waiting.register(process, select.POLLIN)
            waiting.poll(patience.end_s * 1000)
    finally:
        os.close(process)


def _check_name(engine: str, path: str, pid: int, proc: str) -> None:
    program = modules.PROGRAM[engine]
    with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
        name = file.read().strip()
    if name != program:
        raise EngineError(
            f"{path} is answered by {name} (process {pid}), not by {program}",
            hint="name the engine's own socket by --socket",
        )


OPT_OUT = "--restart-mode=none"
TIMEOUT_S = 60.0  # for an engine to be well again


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReloader(Reloader):
    """Reloads an engine of the host that this container runs on."""

    engine: str  # its name, which is also that of its unit
    mode: str  # "signal", "systemd" or "none"
    socket: str  # of the engine, as a path of this process
    command: tuple[str, ...] = ()  # runs on the host in place of `mode`, unless that is "none"
    patience: Patience = field(default_factory=Patience)

    def opt_out(self) -> str:
        """Return the option that prevents the reload."""
        return "" if self.mode == "none" else OPT_OUT

    def choose(self, *, restart: bool, removing: bool) -> Reload:
        """Return what to do."""
        del restart, removing  # the user's restart mode has decided
        if self.mode == "none":
            note = f"{self.engine} is not restarted ({OPT_OUT}): the change takes effect later"
            return Reload(note=note)
        if self.command:
            return Reload(action="restart", argv=self.command)
        if self.mode == "systemd":
            return Reload(action="restart", argv=("systemctl", "restart", self.engine))
        return Reload(action="signal")

    def carry_out(self, decision: Reload, run: Run, *, restored: bool) -> str:
        """Reload the engine; return a note."""
        if decision.action == "restart":
            completed = run(list(decision.argv), reload.RESTART_TIMEOUT_S)
            if completed.status:
                raise EngineError(
                    f"{self.engine} does not start again: {completed.reason}",
                    hint="see its log on the host; --host-root is where the host's files are",
                )
            return ""
        patience = replace(self.patience, attempts=1) if restored else self.patience
        try:
            hang_up(self.engine, self.socket, patience)
        except EngineError:
            if not restored:
                raise  # else the failed files stopped it; its service manager starts it again
        return ""
