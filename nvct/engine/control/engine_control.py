# SPDX-License-Identifier: Apache-2.0
"""Checks, reloads and probes one container engine; `nvct.engine.change` writes its files.

The engine is one of this host, or of the host on which this process's container runs. Programs,
paths and the way to reload differ, and are injected; the steps are the same.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace

from nvct.engine import modules
from nvct.engine.control import command, probe, validate
from nvct.engine.model import Files
from nvct.errors import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.control.command import Done, Run
    from nvct.engine.control.reload import Reloader
    from nvct.engine.model import EngineOptions, FileEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineControl:
    """The control of one engine.

    Attributes:
        options: what the engine's files are to say.
        program: the engine's, which checks its files; "" skips that.
        reloader: makes the engine read its files.
        socket: the engine's API as a path of this process; "" cannot be probed.
        run: runs a program where the engine runs.
        root: the engine's root directory as a path of this process.
        files: the engine's files.
        leaving: the runtimes are removed, not registered.
        must_be_well: an engine that was ill before the reload has to be well after it.
        timeout_s: for the engine to be well again.
    """

    options: EngineOptions
    program: str
    reloader: Reloader
    socket: str = ""
    run: Run = command.run
    root: str = "/"
    files: Files = field(default_factory=Files)
    leaving: bool = False
    must_be_well: bool = False
    timeout_s: float = probe.TIMEOUT_S

    def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
        """Have the engine read files that are not in place yet; return notes.

        Raises:
            EngineError: it refuses them.
        """
        if not self.program:
            return []
        engine, own = self.options.engine, self.options.config
        options = self._options_there()
        if options is None:
            return [f"not checked by {engine} itself: where it has {own} is unknown"]
        there = [replace(e, path=options.config) if e.path == own else e for e in edits]
        return validate.check(
            options, self.program, there, self.run, root=self.root,
            opt_out=self.reloader.opt_out(), leaving=self.leaving,
        )  # fmt: skip

    def activate(self, *, restart: bool, back: bool = False) -> Sequence[str]:
        """Reload the engine, and wait until it is well; return notes.

        Args:
            restart: a reload without a restart is not enough.
            back: the files are the former ones again.

        Raises:
            EngineError: the engine is not well with its files.
        """
        leaving = back or self.leaving
        options = self._options_there()
        if self.program and options and not leaving:
            validate.in_force(options, self.program, self.run, root=self.root)
        chosen = self.reloader.choose(restart=restart, leaving=leaving and restart)
        notes = [chosen.note] if chosen.note else []
        if not chosen.action:
            return notes
        ill = "" if back or self.must_be_well else self._problem()
        since = time.time()
        done = self.reloader.carry_out(chosen, self.run, back=back)
        notes = [done, *notes] if done else notes
        engine = self.options.engine
        if ill:
            return [
                *notes, f"not seen whether {engine} is well: it was not before either ({ill})"
            ]  # fmt: skip
        if not self.socket:
            return notes
        self._wait(chosen.action, since, leaving=leaving)
        return notes + (self._still_listed() if leaving and engine == "docker" else [])

    def _options_there(self) -> EngineOptions | None:
        """Return the options with the main file's path as the engine knows it, None if unknown."""
        path = self._path_there(self.options.config, modules.CONFIG[self.options.engine])
        return replace(self.options, config=path) if path else None

    def _path_there(self, path: str, usual: str) -> str:
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
                here = os.stat(os.path.dirname(self.files.at(path)))
                below = os.stat(os.path.dirname(f"{root}{candidate}"))
            except OSError:
                continue
            if os.path.samestat(here, below):
                return candidate
        return ""

    def _problem(self) -> str:
        """Return what is wrong with the running engine, "" if nothing is."""
        if not self.socket:
            return "it has no socket"
        return probe.wrong(self.options.engine, self.socket, (), self._ask)

    def _wait(self, action: str, since: float, *, leaving: bool) -> None:
        engine = self.options.engine
        names = () if leaving else [handler.name for handler in self.options.handlers]
        try:
            if action == "restart":
                self._wait_for_process()
            elif engine == "docker":
                probe.wait_for_reload(self.socket, since, timeout_s=self.timeout_s)
            probe.wait(engine, self.socket, names, self._ask, timeout_s=self.timeout_s)
        except EngineError as error:
            words = self.reloader.last_words(self.run)
            if words:
                raise EngineError(f"{error.message}: {words}") from error
            raise

    def _wait_for_process(self) -> None:
        end = time.monotonic() + self.timeout_s
        while not self.reloader.is_running():
            if time.monotonic() >= end:
                raise EngineError(f"{self.options.engine} does not run after its restart")
            time.sleep(probe.PAUSE_S)

    def _ask(self, argv: Sequence[str], timeout_s: float) -> Done:
        """Run the engine's own client, which knows the socket by its path there."""
        here = f"--address={self.socket}"
        there = self._path_there(self.socket, modules.SOCKET[self.options.engine])
        if not there:
            return command.Done(status=command.NOT_FOUND, err="the host's path is unknown")
        return self.run(
            [f"--address={there}" if word == here else word for word in argv], timeout_s
        )

    def _still_listed(self) -> list[str]:
        """Return a note on runtimes that dockerd keeps: a reload removes none."""
        names = {handler.name for handler in self.options.handlers}
        try:
            left = sorted(names & probe.runtimes(self.socket))
        except OSError:
            return []
        return [f"dockerd keeps {', '.join(left)} until it is restarted"] if left else []
