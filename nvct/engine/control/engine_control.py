# SPDX-License-Identifier: Apache-2.0
"""What can be done with one engine but for writing its files: check, tell, see how it is."""

from __future__ import annotations

import time
from dataclasses import dataclass

from nvct.engine.control import command, probe, reload, validate
from nvct.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvct.engine.control.command import Run
    from nvct.engine.control.processes import Process
    from nvct.engine.detected_engine import Engine
    from nvct.engine.model import FileEdit, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHands:
    """The hands for an engine of this host.

    Attributes:
        wanted: what it is told.
        program: of the engine, to have it check its files; "" skips that.
        found: the engine as it runs here, None where there is none.
        way: to tell it: "auto", "restart" or "none".
        look: finds a running engine by its process number.
        again: looks for the engine after a restart.
        leaving: its runtimes are to go, not to be there.
        run: runs a program.
        timeout_s: for the engine to be well again.
    """

    wanted: Wanted
    program: str
    found: Engine | None
    way: str
    look: Callable[[int], Process | None]
    again: Callable[[], Engine | None]
    leaving: bool = False
    run: Run = command.run
    timeout_s: float = probe.TIMEOUT_S

    def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
        """Have the engine read files that are not in place yet."""
        if not self.program:
            return []
        told = self.found is not None and self.found.pid > 0 and self.way != "none"
        return validate.check(
            self.wanted, self.program, edits, self.run, told=told, leaving=self.leaving
        )

    def activate(self, *, restart: bool, back: bool = False) -> Sequence[str]:
        """Tell the engine to read its files, and see that it is well."""
        engine = self.wanted.engine
        leaving = back or self.leaving
        if self.program and not leaving:
            validate.in_force(self.wanted, self.program, self.run)
        chosen = reload.choose(
            self.found, engine, self.way, restart=restart, leaving=leaving and restart
        )
        if not chosen.action or self.found is None:
            return [chosen.note] if chosen.note else []
        path = self.found.socket
        before = probe.wrong(engine, path, (), self.run) if path else "it has no socket"
        since = time.time()
        reload.carry_out(chosen, self.found, self.look, self.run)
        notes = [] if back else [_done(chosen, self.found)]
        notes += [chosen.note] if chosen.note else []
        if before and not back:
            ill = f"not seen whether {engine} is well: it was not before either ({before})"
            return [*notes, ill]
        self._see(path, chosen.action, since, leaving=leaving)
        return notes + (self._still_listed(path) if leaving and engine == "docker" else [])

    def _see(self, path: str, action: str, since: float, *, leaving: bool) -> None:
        names = [handler.name for handler in self.wanted.handlers]
        try:
            if action == "restart":
                self._wait_for_process()
            else:
                probe.wait_for_reload(path, since, timeout_s=self.timeout_s)
            wanted = () if leaving else names
            probe.wait(self.wanted.engine, path, wanted, self.run, timeout_s=self.timeout_s)
        except EngineError as error:
            said = reload.last_words(self.found, self.run) if self.found else ""
            if said:
                raise EngineError(f"{error.message}: {said}") from error
            raise

    def _still_listed(self, path: str) -> list[str]:
        """Say so where dockerd keeps runtimes: a reload adds and changes, but takes none out."""
        names = {handler.name for handler in self.wanted.handlers}
        try:
            left = sorted(names & probe.runtimes(path))
        except OSError:
            return []
        return [f"dockerd keeps {', '.join(left)} until it is restarted"] if left else []

    def _wait_for_process(self) -> None:
        end = time.monotonic() + self.timeout_s
        while self.again() is None:
            if time.monotonic() >= end:
                raise EngineError(f"{self.wanted.engine} does not run after its restart")
            time.sleep(probe.PAUSE_S)


def _done(chosen: reload.Reload, found: Engine) -> str:
    """Return a sentence about what an engine was told."""
    name = f"{found.engine} (process {found.pid})"
    if chosen.action == "signal":
        return f"{name} was told to read its file again; its containers run on"
    return f"{found.unit or name} was restarted"
