# SPDX-License-Identifier: Apache-2.0
"""The configuration, state and faults of an engine, for `nvct runtime status`.

Contract: only reads. A file that cannot be used is reported in the value; nothing is raised.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nvct.config.tables import Table, subtable
from nvct.engine import containerd_load as loading
from nvct.engine import modules, running
from nvct.engine.containerd_load import CRI, Config, Cri
from nvct.engine.model import Engine, EngineOptions, Files, State
from nvct.engine.running import Ask, Running
from nvct.errors import NvctError
from nvct.paths import SHIM_PROGRAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One engine and what its files say."""

    engine: Engine
    state: State | None = None  # what its files say; None if they are not read or cannot be read
    problem: str = ""  # why they cannot be used, "" if they can
    is_closed: bool = False  # whether that is because this user has no right to read them
    registered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    running: Running | None = None
    differences: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()  # of valid files that do not fit together

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


def of(engine: Engine, files: Files, ask: Ask = running.ask) -> Status:
    """Return the status of an engine.

    If it belongs to another user or file system, only its process is reported: its files cannot be
    trusted.
    """
    if not engine.config or engine.root != files.root or engine.uid not in (0, os.geteuid()):
        return Status(engine=engine)
    try:
        state = modules.of(engine.engine).state(options_for(engine), files)
    except NvctError as error:
        # A file that nvct must not edit may have a syntax that only its owner understands.
        reported = running.of(engine, None, ask)
        problem = "" if engine.leave else error.message
        return Status(
            engine=engine,
            problem=problem,
            is_closed=isinstance(error.__cause__, PermissionError),
            running=reported,
        )
    registered = {name: path for name, path in state.handlers.items() if is_nvidia(name, path)}
    missing = [name for name in sorted(registered) if not _exists(registered[name], files, engine)]
    in_force = running.of(engine, state, ask)
    # Users cannot mend files that a platform generates.
    has_faults = engine.engine == "containerd" and not engine.leave
    faults = faults_of(options_for(engine), files) if has_faults else ()
    sentences = running.differences(engine, state, in_force, registered) if in_force else ()
    return Status(
        engine=engine, state=state, registered=tuple(sorted(registered)), missing=tuple(missing),
        running=in_force, differences=tuple(sentences), faults=tuple(faults),
    )  # fmt: skip


def options_for(engine: Engine) -> EngineOptions:
    """Return options that read an engine's files."""
    return EngineOptions(
        engine=engine.engine,
        handlers=(),
        config=engine.edit or engine.config,
        drop_in=engine.drop_in,
        engine_version=engine.numbers,
    )


def is_nvidia(name: str, path: str) -> bool:
    """Report whether a handler's program is NVIDIA's or ours; without a path, by its name."""
    return posixpath.basename(path or name).startswith((SHIM_PROGRAM, "nvidia"))


def _missing(engine: Engine, name: str, path: str) -> str:
    program = f"the program of its runtime {name}{f', {path},' if path else ''} is not"
    if path and "/" not in path:
        return f"{program} on its PATH, which is {engine.path or 'empty'}"
    return f"{program} there"


def _exists(path: str, files: Files, engine: Engine) -> bool:
    """Report whether a program exists; the engine's PATH is searched for one without a folder."""
    if "/" in path:
        return os.access(files.at(path), os.X_OK)
    if not path or engine.path is None:
        return True  # unknown
    folders = (folder for folder in engine.path.split(":") if folder.startswith("/"))
    return any(os.access(files.at(f"{folder}/{path}"), os.X_OK) for folder in folders)


MOVED = ("containerd", "cni", "registry", "sandbox_image", "enable_cdi", "cdi_spec_dirs")
"""Keys of the CRI's table in version 2 that are elsewhere in version 3."""
DROP_INS = "conf.d"
IMPORTS_BY_ITSELF = (2, 2)  # the first release that may read DROP_INS without an import
NAMED = 3


class Fault(NamedTuple):
    """A sentence, and whether NVIDIA's runtimes or settings are lost."""

    text: str
    is_severe: bool


def faults_of(options: EngineOptions, files: Files) -> list[Fault]:
    """Return how containerd's files do not fit together; [] if one cannot be read."""
    try:
        config = loading.load(options, files)
        return [
            *_unread(config), *_replaced(config), *_without_type(config),
            *_not_imported(config, options, files),
        ]  # fmt: skip
    except NvctError:
        return []


def _unread(config: Config) -> Iterator[Fault]:
    """Yield a fault for the CRI settings of another version than the one in force."""
    named = [loaded.path for loaded in config.files if loaded.version == config.version]
    for loaded, name in config.unread(MOVED):
        # containerd 2 reads no settings of version 1, whatever the other files say.
        why = (
            f"{named[-1]} makes it version {config.version}"
            if config.modern and loaded.version > 1 and named
            else f"it reads {config.names[0]}"
        )
        text = f"containerd does not read [plugins.{name!r}] of {loaded.path}: {why}"
        yield Fault(text, is_severe=True)


def _replaced(config: Config) -> Iterator[Fault]:
    """Yield a fault for each file with CRI settings that a later file's table drops."""
    if config.modern:
        return
    last = config.winner()
    effective = dict(_values(config.effective().table))
    for loaded in config.files:
        if loaded.path == last.path:
            return
        cri = config.cri(loaded) or {}
        lost = [key for key, value in _values(cri) if _is_lost(key, value, effective)]
        if lost:
            rest = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
            text = f"{last.path} replaces the CRI settings of {loaded.path}: not in force: "
            yield Fault(text + ", ".join(lost[:NAMED]) + rest, is_severe=False)


def _is_lost(key: str, value: object, effective: Mapping[str, object]) -> bool:
    """Report whether a setting is not in force; a changed default runtime is not lost."""
    if key.startswith("containerd.default_runtime") and key in effective:
        return False
    return effective.get(key) != value


def _values(table: Table, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in loading.set_only(table).items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _without_type(config: Config) -> Iterator[Fault]:
    for name, table in config.effective().runtimes.items():
        if is_nvidia(name, loading.binary(table)) and not table.get("runtime_type"):
            text = f"its runtime {name} has no runtime_type, so it cannot start containers"
            yield Fault(text, is_severe=True)


def _not_imported(config: Config, options: EngineOptions, files: Files) -> Iterator[Fault]:
    """Yield a fault for each drop-in with NVIDIA's runtime that no file imports."""
    if config.root.data is None or options.engine_version >= IMPORTS_BY_ITSELF:
        return
    folder = f"{posixpath.dirname(config.root.path)}/{DROP_INS}"
    for path in files.names(folder, ".toml"):
        if config.get(path) is None and _registers(path, files):
            text = f"{path} registers NVIDIA's runtime, but no file imports it"
            yield Fault(text, is_severe=False)


def _registers(path: str, files: Files) -> bool:
    loaded = loading.parsed(path, files.read(path))
    return any(
        name.startswith("nvidia") or SHIM_PROGRAM in loading.binary(table)
        for plugin in dict.fromkeys(CRI.values())
        for name, table in Cri(
            subtable(loaded.document, ("plugins", plugin)), modern=True
        ).runtimes.items()
    )
