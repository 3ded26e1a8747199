# SPDX-License-Identifier: Apache-2.0
"""Registers the installed runtimes with the host's engine, and removes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from nvct.engine import command, modules, writing
from nvct.engine.containerd_load import binary, cri_of_dump
from nvct.engine.engine_control import EngineControl
from nvct.engine.journal import Journal
from nvct.engine.model import Change, EngineOptions, Handler, State
from nvct.engine.status import is_nvidia
from nvct.engine.transaction import Transaction
from nvct.errors import EngineError, HostError, NvctError, OSErrorsAs
from nvct.installer import host
from nvct.installer.host import TIMEOUT_S, ContainerReloader
from nvct.installer.request import LOW_LEVEL, Request
from nvct.paths import RUNTIME_HOOK_PROGRAM, SHIM_PROGRAM

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An engine of the host, and the objects that change it."""

    options: EngineOptions
    files: host.HostFiles
    journal: Journal
    control: EngineControl

    def transaction(self, *, removing: bool = False, quiet: bool = False) -> Transaction:
        """Return a transaction of its files; `quiet` neither checks nor reloads the engine."""
        control = None if quiet else replace(self.control, removing=removing)
        return Transaction(modules.of(self.options.engine), self.files, self.journal, control)


def setup(request: Request) -> Setup:
    """Return the engine that a request names; EngineError or DocumentError if it is unreadable."""
    run, files = host.programs_of(request), host.files_of(request)
    options, socket = options_of(request, run), host.socket_of(request)
    control = EngineControl(
        options=options,
        program=request.executable or modules.PROGRAM[request.engine],
        reloader=ContainerReloader(
            engine=options.engine,
            mode=request.restart,
            socket=socket,
            command=request.restart_command,
        ),
        socket=socket,
        run=run,
        root=run.root,
        files=files,
        must_be_healthy=True,
        timeout_s=TIMEOUT_S,
    )
    return Setup(options=options, files=files, journal=Journal(request.state_dir), control=control)


def handlers(request: Request) -> tuple[tuple[Handler, ...], str]:
    """Return the runtimes to register, and the name of the default, "" for none.

    As in NVIDIA's installer, the first runtime gets the requested name, unless that is the name of
    one of the two others.
    """
    fixed = [name for name, suffix in modules.VARIANTS if suffix]
    first = modules.NAME if request.name in fixed else request.name
    registered = modules.handlers(request.program(SHIM_PROGRAM), first)
    return registered, request.name if request.default else ""


def options_of(request: Request, run: host.HostPrograms) -> EngineOptions:
    """Return the options to configure in the engine; see `setup`."""
    registered, default = handlers(request)
    program = request.executable or modules.PROGRAM[request.engine]
    dump = _dump(request, program, run)
    return EngineOptions(
        engine=request.engine,
        handlers=registered,
        default=default,
        cdi=request.cdi and request.engine != "crio",
        config=request.config,
        drop_in=request.drop_in and (request.drop_in_host or request.drop_in),
        executable=request.executable,
        dump=dump,
        runtime_type=request.runtime_type,
        engine_version=command.version(program, run),
        container_annotations=request.annotations if request.engine == "containerd" else (),
    )


def low_level(state: State) -> tuple[str, ...]:
    """Return the low-level runtimes that an engine names, followed by the usual ones.

    NVIDIA's are left out: a killed run may have left the shim there.
    """
    registered = [
        path
        for name in (state.default, *LOW_LEVEL)
        if (path := state.handlers.get(name, "")) and not is_nvidia(name, path)
    ]
    return tuple(dict.fromkeys([*registered, *LOW_LEVEL]))


def find_low_level(engine_setup: Setup) -> tuple[str, ...]:
    """Return the low-level runtimes of an engine; DocumentError if its files are malformed."""
    options = engine_setup.options
    if options.dump and options.engine == "containerd":  # its module reads only files
        cri = cri_of_dump(options.dump)
        programs = {name: binary(table) for name, table in cri.runtimes.items()}
        return low_level(State(handlers=programs, default=cri.default))
    return low_level(modules.of(options.engine).state(options, engine_setup.files))


def configure(request: Request, engine_setup: Setup, say: Say) -> None:
    """Register the runtimes, or the hook in CRI-O's deprecated mode. Raises as `Transaction`."""
    if request.hook_file:
        hook = modules.hook_file(request.program(RUNTIME_HOOK_PROGRAM))
        writing.write_file(request.hook_file, hook, mode=0o644)
        say(f"wrote {request.hook_file}")
        return
    outcome = engine_setup.transaction().configure(engine_setup.options)
    _tell(outcome, engine_setup, say)
    if not outcome.edits:
        say(f"{engine_setup.options.engine} is configured already")


def _tell(outcome: Change, engine_setup: Setup, say: Say) -> None:
    for edit in outcome.edits:
        say(f"{'removed' if edit.after is None else 'wrote'} {engine_setup.files.at(edit.path)}")
    for note in outcome.notes:
        say(note)


def undo(request: Request, engine_setup: Setup, say: Say) -> None:
    """Remove the runtimes from the engine. Raises as `Transaction`.

    CRI-O keeps them and gets only its former default back: it forgets pods whose runtime is not
    registered any more.
    """
    if request.hook_file:
        with (
            OSErrorsAs(HostError, f"{request.hook_file} cannot be removed"),
            suppress(FileNotFoundError),
        ):
            os.unlink(request.hook_file)
        say(f"removed {request.hook_file}")
        return
    if engine_setup.options.engine == "crio":
        _restore_default(engine_setup, say)
        return
    if engine_setup.options.engine == "docker" and engine_setup.options.default:
        _make_runc_default(engine_setup)
    outcome = engine_setup.transaction(removing=True).undo(engine_setup.options)
    _tell(outcome, engine_setup, say)


def _make_runc_default(engine_setup: Setup) -> None:
    """Make Docker's own runtime the default, by name.

    dockerd keeps a default that its file no longer names, and then refuses a file without that
    runtime (daemon/reload_unix.go), until it is restarted or gets another default.
    """
    options, files = engine_setup.options, engine_setup.files
    if modules.of("docker").state(options, files).default == options.default:
        runc = replace(options, default=LOW_LEVEL[0])
        engine_setup.transaction(removing=True).configure(runc)


def _restore_default(engine_setup: Setup, say: Say) -> None:
    if not engine_setup.options.default:
        return
    quiet = engine_setup.transaction(quiet=True)
    quiet.undo(engine_setup.options)
    without_default = replace(engine_setup, options=replace(engine_setup.options, default=""))
    outcome = without_default.transaction().configure(without_default.options)
    for edit in outcome.edits:
        say(f"wrote {engine_setup.files.at(edit.path)}: CRI-O has its own default runtime again")


def _dump(request: Request, program: str, run: host.HostPrograms) -> str:
    """Return the configuration that the engine prints, "" if its files must be read instead."""
    trouble: NvctError | None = None
    for source in request.sources:
        try:
            if source == "file":
                return ""
            if source == "command":
                return command.dump(request.engine, program, run)
            return _read(source)
        except NvctError as error:
            trouble = error
    if trouble is not None:
        raise trouble
    return ""


def _read(path: str) -> str:
    data = host.HostFiles().read(path)
    if data is None:
        raise EngineError(f"{path} does not exist", hint="see --config-source")
    return data.decode(errors="replace")
