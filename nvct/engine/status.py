# SPDX-License-Identifier: Apache-2.0
"""The configuration and the state of an engine, for `nvct runtime status`.

Contract: only reads. A file that cannot be used is a sentence in the value, not an error.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass

from nvct.engine import containerd_faults as faults
from nvct.engine import modules, probe, running
from nvct.engine.containerd_faults import Fault
from nvct.engine.model import Engine, EngineOptions, Files, Handler, State
from nvct.engine.probe import Ask
from nvct.engine.running import Running
from nvct.errors import NvctError
from nvct.paths import SHIM_PROGRAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One engine and what its files say.

    Attributes:
        state: what its files say; None if they are not read or cannot be read.
        problem: why they cannot be used, "" if they can.
        is_closed: whether that is because this user may not read them.
        registered: the names of those handlers whose program is NVIDIA's, sorted.
        missing: of these, the names whose program does not exist.
        running: what the running engine has in force; None if it does not run.
        differences: sentences about settings of the files that are not in force.
        faults: of valid files that do not fit together.
    """

    engine: Engine
    state: State | None = None
    problem: str = ""
    is_closed: bool = False
    registered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    running: Running | None = None
    differences: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def in_force(self) -> State | None:
        """What the running engine reports, or else its files."""
        in_force = self.running.state if self.running else None
        return in_force or self.state

    def missing_programs(self) -> list[str]:
        """Return a sentence about each registered runtime whose program is not there."""
        programs = self.state.handlers if self.state else {}
        return [_missing(self.engine, name, programs.get(name, "")) for name in self.missing]

    @property
    def is_default(self) -> bool:
        """Whether NVIDIA's runtime is the default."""
        return self.in_force is not None and self.in_force.default in self.registered


def of(engine: Engine, files: Files, ask: Ask = probe.ask) -> Status:
    """Return the status of an engine.

    Of an engine of another user or file system only the process is reported: its files cannot be
    trusted.

    Args:
        ask: does an HTTP GET on a socket.
    """
    if not engine.config or engine.root != files.root or _is_other_users(engine):
        return Status(engine=engine)
    try:
        state = modules.of(engine.engine).state(options_for(engine), files)
    except NvctError as error:
        # A file that is not ours to edit may have any syntax that its owner understands.
        reported = running.of(engine, None, ask)
        problem = "" if engine.leave else error.message
        return Status(
            engine=engine,
            problem=problem,
            is_closed=isinstance(error.__cause__, PermissionError),
            running=reported,
        )
    registered = {name: path for name, path in state.handlers.items() if is_nvidia(name, path)}
    missing = [
        name for name, path in sorted(registered.items()) if not _exists(path, files, engine)
    ]
    in_force = running.of(engine, state, ask)
    sentences = running.differences(engine, state, in_force, registered) if in_force else ()
    return Status(
        engine=engine, state=state, registered=tuple(sorted(registered)), missing=tuple(missing),
        running=in_force, differences=tuple(sentences), faults=_faults(engine, files),
    )  # fmt: skip


def _faults(engine: Engine, files: Files) -> tuple[Fault, ...]:
    """Return the faults of files that their owner does not generate anew."""
    if engine.engine != "containerd" or engine.leave:
        return ()
    return tuple(faults.of(options_for(engine), files))


def options_for(engine: Engine, handlers: tuple[Handler, ...] = ()) -> EngineOptions:
    """Return options that register handlers with an engine; without any, they read its files."""
    return EngineOptions(
        engine=engine.engine,
        handlers=handlers,
        config=engine.edit or engine.config,
        drop_in=engine.drop_in,
        engine_version=engine.numbers,
    )


def is_nvidia(name: str, path: str) -> bool:
    """Report whether a handler's program is NVIDIA's or ours; without a path, by its name."""
    return posixpath.basename(path or name).startswith((SHIM_PROGRAM, "nvidia"))


def _is_other_users(engine: Engine) -> bool:
    return engine.uid not in (0, os.geteuid())


def _missing(engine: Engine, name: str, path: str) -> str:
    program = f", {path}," if path else ""
    if path and "/" not in path:
        folders = engine.path or "empty"
        return f"the program of its runtime {name}{program} is not on its PATH, which is {folders}"
    return f"the program of its runtime {name}{program} is not there"


def _exists(path: str, files: Files, engine: Engine) -> bool:
    """Report whether a program exists; the engine looks up a name without folders on its PATH."""
    if "/" in path:
        return os.access(files.at(path), os.X_OK)
    if not path or engine.path is None:
        return True  # that cannot be seen
    folders = (folder for folder in engine.path.split(":") if folder.startswith("/"))
    return any(os.access(files.at(f"{folder}/{path}"), os.X_OK) for folder in folders)
