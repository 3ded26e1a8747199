# SPDX-License-Identifier: Apache-2.0
"""Checks, reloads and probes one container engine; `nvct.engine.change` writes its files.

The engine is one of this host, or of the host on which this process's container runs. Programs,
paths and the way to reload differ, and are injected; the steps are the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nvct.engine import command, modules, probe, validate
from nvct.engine.command import Completed, Run
from nvct.engine.model import EngineOptions, FileEdit, Files
from nvct.engine.reload import Reloader
from nvct.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineControl:
    """The control of one engine.

    Attributes:
        options: what the engine's files are to say.
        program: the engine's, which checks its files; "" skips that.
        socket: the engine's API as a path of this process; "" if it cannot be probed.
        run: runs a program where the engine runs.
        root: the engine's root directory as a path of this process.
        removing: the runtimes are removed, not registered.
        must_be_healthy: an engine that was not well before the reload has to be well after it.
        timeout_s: for the engine to be well again.
    """

    options: EngineOptions
    program: str
    reloader: Reloader
    socket: str = ""
    run: Run = command.run
    root: str = "/"
    files: Files = field(default_factory=Files)
    removing: bool = False
    must_be_healthy: bool = False
    timeout_s: float = probe.TIMEOUT_S

    def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
        """Have the engine read files that are not in place yet; return notes.

        Raises:
            EngineError: it refuses them.
        """
        if not self.program:
            return []
        engine, config = self.options.engine, self.options.config
        options = self._engine_options()
        if options is None:
            return [f"not checked by {engine} itself: where it has {config} is unknown"]
        engine_edits = [replace(e, path=options.config) if e.path == config else e for e in edits]
        return validate.check(
            options, self.program, engine_edits, self.run, root=self.root,
            opt_out=self.reloader.opt_out(), removing=self.removing,
        )  # fmt: skip

    def activate(self, *, restart: bool, restored: bool = False) -> Sequence[str]:
        """Reload the engine, and wait until it is well; return notes.

        Args:
            restart: a reload without a restart is not enough.
            restored: the files are the former ones again.

        Raises:
            EngineError: the engine is not well with its files.
        """
        removing = restored or self.removing
        options = self._engine_options()
        if self.program and options and not removing:
            validate.check_in_force(options, self.program, self.run, root=self.root)
        decision = self.reloader.choose(restart=restart, removing=removing and restart)
        notes = [decision.note] if decision.note else []
        if not decision.action:
            return notes
        earlier_problem = "" if restored or self.must_be_healthy else self._problem()
        since = time.time()
        note = self.reloader.carry_out(decision, self.run, restored=restored)
        notes = [note, *notes] if note else notes
        engine = self.options.engine
        if earlier_problem:
            note = f"not seen whether {engine} is well: it was not before either"
            return [*notes, f"{note} ({earlier_problem})"]
        if not self.socket:
            return notes
        self._wait(decision.action, since, removing=removing)
        return notes + (self._remaining_note() if removing and engine == "docker" else [])

    def _engine_options(self) -> EngineOptions | None:
        """Return the options with the main file's path as the engine knows it, None if unknown."""
        path = self._engine_path(self.options.config, modules.CONFIG[self.options.engine])
        return replace(self.options, config=path) if path else None

    def _engine_path(self, path: str, usual: str) -> str:
        """Return a path of this process as the engine knows it; "" if that is unknown.

        Args:
            path: below the engine's root, or mounted here.
            usual: where such a file lies on most hosts.
        """
        root = self.root.rstrip("/")
        if not root:
            return path
        if path.startswith(f"{root}/"):
            return path[len(root) :]
        for candidate in dict.fromkeys((path, usual)):
            try:
                file_folder = os.stat(os.path.dirname(self.files.at(path)))
                root_folder = os.stat(os.path.dirname(f"{root}{candidate}"))
            except OSError:
                continue
            if os.path.samestat(file_folder, root_folder):
                return candidate
        return ""

    def _problem(self) -> str:
        """Return what is wrong with the running engine, "" if nothing is."""
        if not self.socket:
            return "it has no socket"
        return probe.find_problem(self.options.engine, self.socket, (), self._ask)

    def _wait(self, action: str, since: float, *, removing: bool) -> None:
        engine = self.options.engine
        names = () if removing else [handler.name for handler in self.options.handlers]
        try:
            if action == "restart":
                self._wait_for_process()
            elif engine == "docker":
                probe.wait_for_reload(self.socket, since, timeout_s=self.timeout_s)
            probe.wait(engine, self.socket, names, self._ask, timeout_s=self.timeout_s)
        except EngineError as error:
            log_error = self.reloader.last_error(self.run)
            if log_error:
                raise EngineError(f"{error.message}: {log_error}") from error
            raise

    def _wait_for_process(self) -> None:
        end = time.monotonic() + self.timeout_s
        while not self.reloader.is_running():
            if time.monotonic() >= end:
                raise EngineError(f"{self.options.engine} does not run after its restart")
            time.sleep(probe.PAUSE_S)

    def _ask(self, argv: Sequence[str], timeout_s: float) -> Completed:
        """Run the engine's own client, which knows the socket by its path there."""
        own_address = f"--address={self.socket}"
        engine_socket = self._engine_path(self.socket, modules.SOCKET[self.options.engine])
        if not engine_socket:
            return command.Completed(status=command.NOT_FOUND, err="the host's path is unknown")
        return self.run(
            [f"--address={engine_socket}" if word == own_address else word for word in argv],
            timeout_s,
        )

    def _remaining_note(self) -> list[str]:
        """Return a note on runtimes that dockerd keeps: a reload removes none."""
        names = {handler.name for handler in self.options.handlers}
        try:
            remaining = sorted(names & probe.runtimes(self.socket))
        except OSError:
            return []
        return [f"dockerd keeps {', '.join(remaining)} until it is restarted"] if remaining else []
