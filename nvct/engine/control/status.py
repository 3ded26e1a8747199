# SPDX-License-Identifier: Apache-2.0
"""What an engine is told, and what it does: values for `nvct runtime status`.

Contract: only reads; a file that cannot be used is a sentence in the value, and no error.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass

from nvct.engine import modules
from nvct.engine.control import probe, running
from nvct.engine.model import EngineOptions, Files, State
from nvct.errors import NvctError
from nvct.paths import SHIM_PROGRAM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.engine.control.probe import Ask
    from nvct.engine.control.running import Running
    from nvct.engine.detected_engine import Engine
    from nvct.engine.model import Handler


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One engine and what its files say.

    Attributes:
        engine: as it was found.
        state: what its files say; None where they are not read, or cannot be.
        problem: why they cannot be used, "" where they can.
        registered: the names of those handlers whose program is NVIDIA's, sorted.
        missing: of these, the names whose program is not there.
        running: what the running engine has in force; None where it does not run.
        differences: sentences about what the files say and the running engine does not do.
    """

    engine: Engine
    state: State | None = None
    problem: str = ""
    registered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    running: Running | None = None
    differences: tuple[str, ...] = ()

    @property
    def in_force(self) -> State | None:
        """What the running engine says of itself, or else its files."""
        in_force = self.running.state if self.running else None
        return in_force or self.state

    @property
    def is_default(self) -> bool:
        """Whether containers that name no runtime get NVIDIA's."""
        return self.in_force is not None and self.in_force.default in self.registered


def of(engine: Engine, files: Files, ask: Ask = probe.ask) -> Status:
    """Return the status of an engine.

    One that another user or file system has is only told by its process: its files are whatever
    they like.

    Args:
        engine: as `detect` found it.
        files: the host's files.
        ask: does an HTTP GET on a socket.
    """
    if not engine.config or engine.root != files.root or _is_somebodys(engine):
        return Status(engine=engine)
    try:
        state = modules.of(engine.engine).state(options_for(engine), files)
    except NvctError as error:
        # Who writes a file that is not ours to edit knows what it means.
        now = running.of(engine, None, ask)
        return Status(engine=engine, problem="" if engine.leave else error.message, running=now)
    ours = {name: path for name, path in state.handlers.items() if is_nvidia(name, path)}
    missing = [name for name, path in sorted(ours.items()) if not _is_there(path, files)]
    in_force = running.of(engine, state, ask)
    more = running.differences(engine, state, in_force, ours) if in_force else ()
    return Status(
        engine=engine, state=state, registered=tuple(sorted(ours)), missing=tuple(missing),
        running=in_force, differences=tuple(more),
    )  # fmt: skip


def options_for(engine: Engine, handlers: tuple[Handler, ...] = ()) -> EngineOptions:
    """Return what asks an engine for handlers, or, with none, what reads its files."""
    return EngineOptions(
        engine=engine.engine,
        handlers=handlers,
        config=engine.edit or engine.config,
        drop_in=engine.drop_in,
        engine_version=engine.numbers,
    )


def is_nvidia(name: str, path: str) -> bool:
    """Tell whether a handler's program is NVIDIA's or ours; one without a path, by its name."""
    return posixpath.basename(path or name).startswith((SHIM_PROGRAM, "nvidia"))


def _is_somebodys(engine: Engine) -> bool:
    return engine.uid not in (0, os.geteuid())


def _is_there(path: str, files: Files) -> bool:
    """Tell whether a program is there; one without folders is looked up by the engine itself."""
    return "/" not in path or os.access(files.at(path), os.X_OK)
