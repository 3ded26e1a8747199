# SPDX-License-Identifier: Apache-2.0
"""Checks, reloads and probes one container engine. `transaction` writes its files.

The engine is one of this host, or of the host on which this process's container runs. Programs,
paths and the way to reload differ, and are injected; the steps are the same.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nvct.engine import command, containerd, crio, modules, reload, running
from nvct.engine.command import Completed, Run
from nvct.engine.model import EngineOptions, FileEdit, Files
from nvct.engine.reload import Reloader
from nvct.engine.running import TIMEOUT_S
from nvct.errors import EngineError
from nvct.linux import constants
from nvct.linux.folders import missing_folders
from nvct.linux.kernel import KERNEL, Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineControl:
    """The control of one engine."""

    options: EngineOptions
    program: str  # the engine's program, which checks its files; "" skips the check
    reloader: Reloader
    socket: str = ""  # the engine's API as a path of this process; "" if it cannot be probed
    run: Run = command.run
    root: str = "/"
    files: Files = field(default_factory=Files)
    removing: bool = False
    must_be_healthy: bool = False  # after the reload, even if it was not before
    timeout_s: float = TIMEOUT_S

    def check(self, edits: Sequence[FileEdit]) -> Sequence[str]:
        """Let the engine read files that are not in place yet; return notes.

        Raises EngineError if the engine refuses them, unless it refuses the present files, too,
        and is not to be reloaded; or if it accepts them, but the options do not take effect.
        """
        engine, config, root = self.options.engine, self.options.config, self.root.rstrip("/")
        not_checked = f"not checked by {engine} itself:"
        options = self._engine_options()
        if not self.program:
            return []
        if options is None:
            return [f"{not_checked} {engine}'s path of {config} is unknown"]
        after = {options.config if e.path == config else e.path: e.after for e in edits}
        has_file_now = os.path.exists(root + options.config)
        has_file = after.get(options.config) is not None or (
            has_file_now and options.config not in after
        )
        args = check_argv(options, self.program, has_file=has_file)
        if not args:
            return []
        if not self._is_runnable():
            return [f"{not_checked} {os.path.basename(self.program)} is not installed here"]
        try:
            files = {root + path: data for path, data in after.items()}
            with tempfile.TemporaryDirectory(prefix="nvct-") as stage:
                preview = partial(enter_preview, files, stage, KERNEL)
                completed = self.run(args, TIMEOUT_S, enter=preview)
        except OSError as error:
            return [f"{not_checked} a private mount failed ({error.strerror})"]
        if completed.status == 0 and not self.removing:
            _refuse_without_effect(options, completed.out, "nothing was changed")
        if completed.status == command.NOT_FOUND:
            return [f"{not_checked} {completed.reason}"]
        if completed.status == 0 or _has_no_such_command(completed):
            return []
        args = check_argv(options, self.program, has_file=has_file_now)
        return self._refused(_reason(completed), self.run(args, TIMEOUT_S) if args else None)

    def _refused(self, reason: str, present: Completed | None) -> list[str]:
        """Raise the engine's refusal of new files, or note that it refuses the present ones, too.

        An engine that refuses its files must not be restarted, whoever wrote them.
        """
        engine, opt_out = self.options.engine, self.reloader.opt_out()
        if present is None or present.status == 0:
            raise EngineError(
                f"{engine} refuses the new configuration: {reason}", hint="nothing was changed"
            )
        already = f"{engine} refuses even its present files: {_reason(present)}"
        if opt_out:
            hint = f"correct them, or do not reload it ({opt_out}); nothing was changed"
            raise EngineError(already, hint=hint)
        return [already]

    def _check_in_force(self, options: EngineOptions) -> None:
        """Raise EngineError if the options are missing in what `containerd config dump` prints."""
        if options.engine == "containerd" and self._is_runnable():
            completed = self.run(check_argv(options, self.program, has_file=True), TIMEOUT_S)
            if completed.status == 0:
                _refuse_without_effect(options, completed.out)

    def _is_runnable(self) -> bool:
        """Report whether the program exists; True if that is unknown before it is run."""
        return self.root != "/" or shutil.which(self.program) is not None

    def activate(self, *, restart: bool, restored: bool = False) -> Sequence[str]:
        """Reload the engine, and wait until it is healthy; return notes.

        The files are the former ones again if `restored`. Raises EngineError if the engine is not
        healthy.
        """
        removing = restored or self.removing
        options = self._engine_options()
        if self.program and options and not removing:
            self._check_in_force(options)
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
            note = f"{engine} was not healthy before the reload, so it was not checked after it"
            return [*notes, f"{note} ({earlier_problem})"]
        if not self.socket:
            return notes
        self._wait(decision.action, since, removing=removing)
        return notes + (self._remaining_note() if removing and engine == "docker" else [])

    def _engine_options(self) -> EngineOptions | None:
        """Return the options with the engine's own path of the main file; None if unknown."""
        path = self._engine_path(self.options.config, modules.CONFIG[self.options.engine])
        return replace(self.options, config=path) if path else None

    def _engine_path(self, path: str, usual: str) -> str:
        """Return the engine's own path of a file of this process; "" if unknown.

        The file is below the engine's root, or its folder is mounted here; on most hosts the
        engine has it at the `usual` path.
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

    def _problem(self, names: Collection[str] = ()) -> str:
        if not self.socket:
            return "it has no socket"
        engine = self.options.engine
        # The engine's own client knows the socket by its path there.
        address = self._engine_path(self.socket, modules.SOCKET[engine])
        return running.find_problem(engine, self.socket, names, self.run, address)

    def _wait(self, action: str, since: float, *, removing: bool) -> None:
        engine = self.options.engine
        names = () if removing else [handler.name for handler in self.options.handlers]

        def not_running() -> str:
            return "" if self.reloader.is_running() else f"{engine} does not run after its restart"

        def not_reloaded() -> str:
            took = engine != "docker" or running.reloaded(self.socket, since)
            return "" if took else f"dockerd did not reload its files in {self.timeout_s:g} s"

        def not_well() -> str:
            problem = self._problem(names)
            return problem and f"{engine} is not healthy after {self.timeout_s:g} s: {problem}"

        for step in (not_running if action == "restart" else not_reloaded, not_well):
            problem = running.wait(step, self.timeout_s)
            if problem:
                log_error = self.reloader.last_error(self.run, since)
                raise EngineError(f"{problem}: {log_error}" if log_error else problem)

    def _remaining_note(self) -> list[str]:
        """Return a note on removed runtimes that dockerd keeps, because a reload removes none."""
        names = {handler.name for handler in self.options.handlers}
        names -= modules.of("docker").state(self.options, self.files).handlers.keys()
        try:
            remaining = sorted(names & running.runtimes(self.socket))
        except OSError:
            return []
        return [f"dockerd keeps {', '.join(remaining)} until it is restarted"] if remaining else []


def check_argv(options: EngineOptions, program: str, *, has_file: bool) -> list[str]:
    """Return the command with which an engine reads its files and exits; [] if it has none.

    dockerd has --validate since 23.0. CRI-O's `config` reads its drop-ins as a start does. Every
    command of Podman reads its files first. `has_file`: the main file exists, and can be named.
    """
    config = options.config
    if options.engine == "crio":
        main = [f"--config={config}"] if has_file else []
        return [program, *main, f"--config-dir={crio.config_dir(options)}", "config"]
    if options.engine == "podman":
        return [program, "version"]
    commands = {
        "docker": [program, "--validate", f"--config-file={config}"],
        "containerd": [program, f"--config={config}", "config", "dump"],
    }
    return commands.get(options.engine, []) if has_file else []


def _refuse_without_effect(options: EngineOptions, dump: str, hint: str = "") -> None:
    missing = containerd.missing_in_dump(options, dump) if options.engine == "containerd" else ""
    if missing:
        raise EngineError(
            f"containerd reads {options.config} without {missing}: see its version and imports,"
            " and `containerd config dump`",
            hint=hint,
        )


def enter_preview(files: Mapping[str, bytes | None], stage: str, kernel: Kernel) -> None:
    """Enter a mount namespace in which these paths have this content. Raises OSError."""
    kernel.unshare(constants.CLONE_NEWNS)
    kernel.mount(None, "/", None, constants.MS_REC | constants.MS_PRIVATE)
    kernel.mount("nvct", stage, "tmpfs", 0, "mode=0700")
    changed = {os.path.realpath(path): data for path, data in files.items()}
    present = ((missing_folders(path) or [path])[0] for path in changed)
    folders = sorted({os.path.dirname(path) for path in present})
    for number, folder in enumerate(folders):
        # An overlay inside an overlay is stacked, and the kernel stacks only two.
        others = [parent.rstrip("/") + "/" for parent in folders if parent != folder]
        if not folder.startswith(tuple(others)):
            _overlay(folder, f"{stage}/{number}", kernel)
    for path, data in changed.items():
        if data is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
        elif os.path.lexists(path):
            os.unlink(path)


def _overlay(folder: str, stage: str, kernel: Kernel) -> None:
    upper, work = f"{stage}/upper", f"{stage}/work"
    os.makedirs(upper)
    os.makedirs(work)
    lower = kernel.open(folder, os.O_PATH | os.O_DIRECTORY)  # a name may hold "," and ":"
    try:
        data = f"lowerdir=/proc/self/fd/{lower},upperdir={upper},workdir={work}"
        kernel.mount("overlay", folder, "overlay", 0, data)
    finally:
        kernel.close(lower)


def _reason(completed: Completed) -> str:
    return reload.pick(completed.err.splitlines()) or completed.reason


def _has_no_such_command(completed: Completed) -> bool:
    """Report whether the engine is older than the command, or could not be run at all."""
    old = ("unknown flag", "flag provided but not defined", "unknown command", "No help topic")
    if completed.status in (command.TIMED_OUT, errno.ENOEXEC, command.NOT_FOUND):
        return True
    return any(text in completed.err for text in old)
