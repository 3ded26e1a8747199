# SPDX-License-Identifier: Apache-2.0
"""Tell a running engine to read its files again, by the way that the engine has.

dockerd reads runtimes anew on SIGHUP; containerd and CRI-O have to be restarted, which leaves
containers running; a restarted dockerd takes its containers with it (unless live-restore is set),
and is only restarted on request. Podman has nothing that runs.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from nvct.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvct.engine.control.command import Run
    from nvct.engine.control.processes import Process
    from nvct.engine.detected_engine import Engine

RESTART_TIMEOUT_S = 90.0
FIELD = re.compile(r'\b(error|msg)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """How an engine is told, or why it is not.

    Attributes:
        action: "signal", "restart" (by systemd) or "" for nothing.
        argv: of systemctl, where that does it.
        note: what is left to do by whoever asked.
    """

    action: str = ""
    argv: tuple[str, ...] = ()
    note: str = ""


class Reloader:
    """Makes one running engine read its files."""

    def opt_out(self) -> str:
        """Return the option that prevents the reload; "" if there will be none."""
        raise NotImplementedError

    def choose(self, *, restart: bool, leaving: bool) -> Reload:
        """Return what to do; `restart` if the change needs one, `leaving` if runtimes go."""
        raise NotImplementedError

    def carry_out(self, chosen: Reload, run: Run, *, back: bool) -> str:
        """Reload the engine, whose former files may be `back`; return a note, or "".

        Raises:
            EngineError: it is gone, or does not start again.
        """
        raise NotImplementedError

    def is_running(self) -> bool:
        """Report whether the engine runs after a restart; True if its process is not visible."""
        return True

    def last_words(self, run: Run) -> str:
        """Return the engine's last error from its log, or ""."""
        del run
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReloader(Reloader):
    """Reloads an engine of this host, whose process and unit are known.

    Attributes:
        engine: its name.
        found: the engine on this host, None where there is none.
        way: "auto", "restart" or "none".
        look: finds a running engine by its process number.
        again: looks for the engine after a restart.
    """

    engine: str
    found: Engine | None
    way: str
    look: Callable[[int], Process | None]
    again: Callable[[], Engine | None]

    def opt_out(self) -> str:
        """Return the option that prevents the reload."""
        runs = self.found is not None and self.found.pid > 0
        return "--reload=none" if runs and self.way != "none" else ""

    def choose(self, *, restart: bool, leaving: bool) -> Reload:
        """Return what to do."""
        return choose(self.found, self.engine, self.way, restart=restart, leaving=leaving)

    def carry_out(self, chosen: Reload, run: Run, *, back: bool) -> str:
        """Reload the engine; return a note."""
        if self.found is None:
            return ""
        carry_out(chosen, self.found, self.look, run)
        name = f"{self.found.engine} (process {self.found.pid})"
        if back:
            return ""
        if chosen.action == "signal":
            return f"{name} was told to read its file again; its containers run on"
        return f"{self.found.unit or name} was restarted"

    def is_running(self) -> bool:
        """Report whether the engine runs after a restart."""
        return self.again() is not None

    def last_words(self, run: Run) -> str:
        """Return the engine's last error from the system's journal."""
        return last_words(self.found, run) if self.found else ""


def choose(
    found: Engine | None, engine: str, way: str, *, restart: bool, leaving: bool = False
) -> Reload:
    """Return what to do about an engine after its files changed.

    Args:
        found: the engine on this host, None where there is none.
        engine: its name.
        way: "auto", "restart" or "none".
        restart: the change needs one.
        leaving: runtimes go: dockerd refuses the file without its default until it is restarted.
    """
    if engine == "podman":
        return Reload()  # every run of it reads its files
    if way == "none":
        return Reload(note=f"It is recommended that {engine} daemon be restarted.")
    if found is None or not found.pid:
        return Reload()  # it reads its files when it starts
    if engine == "docker" and not restart and way == "auto":
        return Reload(action="signal")
    if engine == "docker" and way == "auto":
        # Runtimes and the default follow a signal, though CDI does not.
        return Reload(
            action="" if leaving else "signal",
            note="dockerd reads this when it is restarted, which stops containers "
            "(unless live-restore is on): --reload=restart does it",
        )
    user = ("--user",) if found.user_unit else ()
    if found.restart:
        return Reload(action="restart", argv=found.restart)
    if not found.unit:
        return Reload(note=f"{engine} (process {found.pid}) runs in no unit: restart it")
    return Reload(action="restart", argv=("systemctl", *user, "restart", found.unit))


def carry_out(
    chosen: Reload, found: Engine, look: Callable[[int], Process | None], run: Run
) -> None:
    """Tell a running engine.

    Args:
        chosen: what to do.
        found: the engine.
        run: runs a program.
        look: finds an engine by its process number; a number may have been given anew.

    Raises:
        EngineError: it is gone, or does not start again.
    """
    if chosen.action == "signal":
        _hang_up(found, look)
    elif chosen.action == "restart":
        done = run(list(chosen.argv), RESTART_TIMEOUT_S)
        if done.status:
            said = last_words(found, run) or done.reason
            raise EngineError(f"{found.unit or found.engine} does not start again: {said}")


def last_words(found: Engine, run: Run) -> str:
    """Return the last error of an engine's own in the system's journal, "" where none is told.

    What systemd says of its unit comes later and says less: `--unit` would have it as well.
    """
    if not found.unit:
        return ""
    words = ["--user", f"_SYSTEMD_USER_UNIT={found.unit}"]
    words = words if found.user_unit else [f"_SYSTEMD_UNIT={found.unit}"]
    argv = ["journalctl", *words, "--no-pager", "--output=cat"]
    done = run([*argv, "--lines=40"], 10.0)
    return pick(done.out.splitlines()) if done.status == 0 else ""


def pick(lines: Sequence[str]) -> str:
    """Return what an engine's log says last of what is wrong, less what is about the log."""
    for marks in (("level=fatal", "level=error"), ("failed", "error", "unable", "invalid")):
        for line in reversed(lines):
            if any(mark in line.lower() for mark in marks) and not line.startswith("systemd"):
                return _sentence(line.strip())
    return ""


def _sentence(line: str) -> str:
    """Return the error, else the message, of a line as logrus writes it, else the line."""
    found = dict(FIELD.findall(line))
    text = found.get("error") or found.get("msg")
    return text.replace('\\"', '"') if text else line


def _hang_up(found: Engine, look: Callable[[int], Process | None]) -> None:
    gone = EngineError(f"{found.engine} (process {found.pid}) has just ended")
    try:
        pidfd = os.pidfd_open(found.pid)
    except OSError as error:
        raise gone from error
    try:
        process = look(found.pid)  # by now the descriptor holds what the number stands for
        if process is None or process.engine != found.engine:
            raise gone
        signal.pidfd_send_signal(pidfd, signal.SIGHUP)
    except OSError as error:
        raise EngineError(
            f"{found.engine} (process {found.pid}) cannot be told: {error.strerror}"
        ) from error
    finally:
        os.close(pidfd)
