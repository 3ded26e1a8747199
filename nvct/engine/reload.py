# SPDX-License-Identifier: Apache-2.0
"""Makes a running engine read its files again, in the way that disturbs containers least.

dockerd reads its runtimes again on SIGHUP. containerd and CRI-O have to be restarted, which leaves
containers running. A restart of dockerd stops its containers (unless live-restore is set), so it
is only done on request. Podman has no daemon.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nvct.engine.command import Run
from nvct.engine.model import Engine
from nvct.engine.processes import Process
from nvct.errors import EngineError

RESTART_TIMEOUT_S = 90.0
FIELD = re.compile(r'\b(error|msg)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """How an engine is reloaded, or why it is not."""

    action: str = ""  # "signal", "restart" or "" for nothing
    argv: tuple[str, ...] = ()
    note: str = ""


class Reloader(ABC):
    """Makes one running engine read its files: on this host, or from a container."""

    @abstractmethod
    def opt_out(self) -> str:
        """Return the option that prevents the reload; "" if there will be none."""

    @abstractmethod
    def choose(self, *, restart: bool, removing: bool) -> Reload:
        """Return what to do; `removing` if runtimes are removed, not registered."""

    @abstractmethod
    def carry_out(self, decision: Reload, run: Run, *, restored: bool) -> str:
        """Reload the engine; return a note, or "" if its files are `restored`. EngineError."""

    def is_running(self) -> bool:
        """Report whether the engine runs after a restart; True if its process is not visible."""
        return True

    def last_error(self, run: Run, since: float) -> str:
        """Return the last error in the engine's log since a time (seconds of the epoch), or ""."""
        del run, since
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReloader(Reloader):
    """Reloads an engine of this host, whose process and unit are known."""

    engine: str
    detected: Engine | None
    mode: str
    find_process: Callable[[int], Process | None]
    find_engine: Callable[[], Engine | None]

    def opt_out(self) -> str:
        """Return the option that prevents the reload."""
        runs = self.detected is not None and self.detected.pid > 0
        return "--reload=none" if runs and self.mode != "none" else ""

    def choose(self, *, restart: bool, removing: bool = False) -> Reload:
        """Return what to do."""
        detected, engine, mode = self.detected, self.engine, self.mode
        if engine == "podman":
            return Reload()  # each run reads its files
        if mode == "none":
            return Reload(note=f"It is recommended that {engine} daemon be restarted.")
        if detected is None or not detected.pid:
            return Reload()  # it reads its files when it starts
        if engine == "docker" and mode == "auto" and not restart:
            return Reload(action="signal")
        if engine == "docker" and mode == "auto":
            # A signal is enough for runtimes and the default, but not for CDI. When dockerd's
            # default runtime is removed, it refuses the file until a restart.
            return Reload(
                action="" if removing else "signal",
                note="dockerd reads this when it is restarted, which stops containers "
                "(unless live-restore is on): --reload=restart does it",
            )
        user = ("--user",) if detected.user_unit else ()
        if detected.restart:
            return Reload(action="restart", argv=detected.restart)
        if not detected.unit:
            return Reload(note=f"restart {engine} (process {detected.pid}): no unit runs it")
        return Reload(action="restart", argv=("systemctl", *user, "restart", detected.unit))

    def carry_out(self, decision: Reload, run: Run, *, restored: bool = False) -> str:
        """Reload the engine; return a note."""
        if self.detected is None:
            return ""
        name = f"{self.detected.engine} (process {self.detected.pid})"
        note = f"{name} reads its file again; its containers keep running"
        if decision.action == "signal":
            _hang_up(self.detected, self.find_process)
        elif decision.action == "restart":
            since = time.time()
            completed = run(list(decision.argv), RESTART_TIMEOUT_S)
            unit = self.detected.unit or self.detected.engine
            if completed.status:
                reason = self.last_error(run, since) or completed.reason
                raise EngineError(f"{unit} does not start again: {reason}")
            note = f"{self.detected.unit or name} was restarted"
        return "" if restored else note

    def is_running(self) -> bool:
        """Report whether the engine runs after a restart."""
        engine = self.find_engine()
        return engine is not None and engine.pid > 0

    def last_error(self, run: Run, since: float) -> str:
        """Return the engine's last error since a time in systemd's journal, or "".

        `--unit` would also show messages of systemd itself, which come later and say less.
        Without `--sync`, the journal may lack the engine's latest messages.
        """
        if self.detected is None or not self.detected.unit:
            return ""
        unit_filter = [f"_SYSTEMD_UNIT={self.detected.unit}"]
        if self.detected.user_unit:
            unit_filter = ["--user", f"_SYSTEMD_USER_UNIT={self.detected.unit}"]
        run(["journalctl", "--sync"], 10.0)
        shown = ["--no-pager", "--output=cat", "--lines=40", f"--since=@{int(since)}"]
        completed = run(["journalctl", *unit_filter, *shown], 10.0)
        return pick(completed.out.splitlines()) if completed.status == 0 else ""


def pick(lines: Sequence[str]) -> str:
    """Return the last error in the lines of an engine's log, "" if there is none."""
    lines = [line for line in lines if "level=info" not in line and "level=debug" not in line]
    for marks in (("level=fatal", "level=error"), ("failed", "error", "unable", "invalid")):
        for line in reversed(lines):
            if any(mark in line.lower() for mark in marks) and not line.startswith("systemd"):
                return _sentence(line.strip())
    return ""


def _sentence(line: str) -> str:
    """Return the error, else the message, of a line as logrus writes it, else the line."""
    fields = dict(FIELD.findall(line))
    text = fields.get("error") or fields.get("msg")
    return text.replace('\\"', '"') if text else line


def hang_up(pid: int, check: Callable[[], None], wait_s: float = 0.0) -> None:
    """Send SIGHUP to a process unless `check` raises; wait `wait_s` for its end. OSError."""
    pidfd = os.pidfd_open(pid)
    try:
        check()  # The pidfd stays that of this process, even if its PID is reused.
        signal.pidfd_send_signal(pidfd, signal.SIGHUP)
        if wait_s:
            waiting = select.poll()
            waiting.register(pidfd, select.POLLIN)
            waiting.poll(wait_s * 1000)
    finally:
        os.close(pidfd)


def _hang_up(detected: Engine, find_process: Callable[[int], Process | None]) -> None:
    name = f"{detected.engine} (process {detected.pid})"

    def check() -> None:
        process = find_process(detected.pid)
        if process is None or process.engine != detected.engine:
            raise ProcessLookupError

    try:
        hang_up(detected.pid, check)
    except ProcessLookupError as error:
        raise EngineError(f"{name} has just ended") from error
    except OSError as error:
        raise EngineError(f"{name} cannot be signaled: {error.strerror}") from error
