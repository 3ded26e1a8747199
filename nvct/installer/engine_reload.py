# SPDX-License-Identifier: Apache-2.0
"""Reloads an engine from a container: by a signal to the socket's owner, or by systemd."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nvct.engine import reload
from nvct.engine.command import Run
from nvct.engine.reload import Reload, Reloader
from nvct.errors import EngineError
from nvct.installer.signals import Patience, hang_up

OPT_OUT = "--restart-mode=none"
TIMEOUT_S = 60.0  # for an engine to be well again


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerReloader(Reloader):
    """Reloads an engine of the host that this container runs on.

    Attributes:
        engine: its name, which is also that of its unit.
        mode: "signal", "systemd" or "none".
        socket: of the engine, as a path of this process.
        command: runs on the host in place of `mode`, unless that is "none".
        patience: how long to wait for the socket and the process.
    """

    engine: str
    mode: str
    socket: str
    command: tuple[str, ...] = ()
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
