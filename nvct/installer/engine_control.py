# SPDX-License-Identifier: Apache-2.0
"""What can be done with an engine from a container: check its files, tell it, see how it is.

The hands that `nvct.engine.change.transaction` wants, by socket and chroot where those of a host
(`nvct.engine.control.engine_control`) find the process itself.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field, replace

from nvct.engine import modules
from nvct.engine.control import command, probe, reload, validate
from nvct.errors import EngineError
from nvct.installer.request import SOCKETS
from nvct.installer.signals import Patience, hang_up
from nvct.linux.kernel import KERNEL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.control.command import Done
    from nvct.engine.model import FileEdit, Wanted
    from nvct.installer.host import HostFiles, HostPrograms

WELL_S = 60.0
UNIT = {"containerd": "containerd", "docker": "docker", "crio": "crio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHands:
    """The hands for an engine of the host that this container runs on.

    Attributes:
        wanted: what the engine is told.
        files: of the host.
        run: runs the host's programs.
        socket: of the engine, as it is here.
        restart: "signal", "systemd" or "none".
        patience: with a signal.
        well_s: for the engine to be well again.
        leaving: its runtimes are to go, not to be there.
    """

    wanted: Wanted
    files: HostFiles
    run: HostPrograms
    socket: str
    restart: str
    patience: Patience = field(default_factory=Patience)
    well_s: float = WELL_S
    leaving: bool = False

    def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
        """Have the host's engine read the files, where its paths of them are known."""
        engine = self.wanted.engine
        program = self.wanted.executable or modules.PROGRAM[engine]
        own = self.wanted.config
        config = self._on_host(own, modules.CONFIG[engine])
        if not config:
            return [f"not checked by {engine} itself: where it has {own} is unknown"]
        after = {config if e.path == own else e.path: e.after for e in edits}
        there = after.get(config, self.files.read(own)) is not None
        words = [
            word.replace(f"={own}", f"={config}")
            for word in validate.argv(self.wanted, program, has_file=there)
        ]
        if not words:
            return []
        try:
            new = self._try(words, after)
        except OSError as error:
            return [f"not checked by {engine} itself: no private mounts here ({error.strerror})"]
        if new.status == 0:
            return []
        now = self.run(words)
        if now.status:
            already = f"{engine} refuses its files already as they are: {now.reason}"
            if self.restart == "none":
                return [already]
            raise EngineError(
                already,
                hint="correct them, or leave it untold by --restart-mode=none; "
                "nothing was changed",
            )
        reason = reload.pick(new.err.splitlines()) or new.reason
        raise EngineError(
            f"{engine} refuses the new configuration: {reason}", hint="nothing was changed"
        )

    def activate(self, *, restart: bool, back: bool = False) -> Sequence[str]:
        """Tell the engine to read its files, and see that it is well."""
        del restart  # who set the restart mode has decided
        engine = self.wanted.engine
        if self.restart == "none":
            return [f"{engine} is not restarted (--restart-mode=none): it knows of this later"]
        since = time.time()
        if self.restart == "systemd":
            self._restart()
        else:
            self._signal(back=back)
        self._see(since, leaving=back or self.leaving)
        return []

    def _restart(self) -> None:
        unit = UNIT[self.wanted.engine]
        done = self.run(["systemctl", "restart", unit], reload.RESTART_TIMEOUT_S)
        if done.status:
            raise EngineError(
                f"{unit} does not start again: {done.reason}",
                hint="see its log on the host; --host-root is where the host's files are",
            )

    def _signal(self, *, back: bool) -> None:
        patience = replace(self.patience, attempts=1) if back else self.patience
        try:
            hang_up(self.wanted.engine, self.socket, patience)
        except EngineError:
            if not back:
                raise  # else it is down with what it was told, and its service manager tries on

    def _see(self, since: float, *, leaving: bool) -> None:
        engine = self.wanted.engine
        if not self.socket:
            return
        signaled = self.restart == "signal"
        if engine == "docker" and signaled:
            probe.wait_for_reload(self.socket, since, timeout_s=self.well_s)
        names = () if leaving else [handler.name for handler in self.wanted.handlers]
        probe.wait(engine, self.socket, names, self._ask, timeout_s=self.well_s)

    def _ask(self, argv: Sequence[str], timeout_s: float) -> Done:
        """Run the engine's own client on the host, which knows the socket by its path there."""
        there = self._on_host(self.socket, SOCKETS[self.wanted.engine])
        if not there:
            return command.Done(status=command.NOT_FOUND, err="the host's path is unknown")
        here = f"--address={self.socket}"
        return self.run(
            [f"--address={there}" if word == here else word for word in argv], timeout_s
        )

    def _on_host(self, path: str, usual: str) -> str:
        """Return the path on the host of what is mounted here, "" where that cannot be told."""
        root = self.run.root.rstrip("/")
        if root and path.startswith(f"{root}/"):
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

    def _try(self, words: list[str], after: dict[str, bytes | None]) -> Done:
        """Run a program of the host that alone sees files with other content.

        Raises:
            OSError: there can be no such mounts here.
        """
        root = self.run.root.rstrip("/")
        placed = {f"{root}{path}": data for path, data in after.items()}
        with tempfile.TemporaryDirectory(prefix="nvct-") as stage:

            def enter() -> None:
                validate.in_place(placed, stage, KERNEL)
                self.run.enter()

            return command.run(words, validate.TIMEOUT_S, enter=enter)
