# SPDX-License-Identifier: Apache-2.0
"""Moves engines from NVIDIA's runtime to nvct's, and back. Cold."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from nvct import paths
from nvct.cli.context import say
from nvct.cli.runtime import engine as runtime_engine
from nvct.cli.runtime.options import own_folder
from nvct.config import toml_file
from nvct.doctor import migration
from nvct.doctor.migration import STAYS, Item, collected
from nvct.engine import modules, processes
from nvct.engine.containerd_load import LINUX_V1
from nvct.engine.journal import DamagedJournalError, Journal
from nvct.engine.model import Change, Engine, EngineOptions, FileEdit, Files, Handler, State
from nvct.engine.status import options_for
from nvct.engine.undo import is_nvidia_runtime
from nvct.engine.writing import state_of
from nvct.errors import HostError, NvctError, line


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An engine that starts NVIDIA's runtime, and the options that make it start nvct's."""

    options: EngineOptions
    engine: Engine
    items: Sequence[Item]


def own(program: str) -> str:
    """Return the path of nvct's program of the same name; HostError if there is none."""
    folder = own_folder()
    if not folder:
        raise HostError(
            f"nvct's {paths.SHIM_PROGRAM} is not in the folder of nvct",
            hint="install nvct's packages, or use bin/nvct of the bundle",
        )
    return f"{folder}/{os.path.basename(program)}"


def is_own(program: str, path: str | None = None) -> bool:
    """Report whether an engine that looks a program up on its PATH gets nvct's."""
    there = shutil.which(program, path=path or ":".join(paths.DEFAULT_PATH_DIRS)) or ""
    ours = os.path.join(own_folder(), os.path.basename(there))
    return bool(there and own_folder()) and os.path.realpath(there) == os.path.realpath(ours)


def moves(errors: list[NvctError]) -> list[Move]:
    """Return the engines of this host that start NVIDIA's runtime.

    The errors of engines whose files cannot be read or edited are added to `errors`.
    """
    found: list[Move] = []
    for engine in _engines():
        ignored: list[NvctError] = []  # of an engine that nvct must not edit
        with collected(ignored if engine.leave else errors):
            state = modules.of(engine.engine).state(options_for(engine), Files())
            programs = {n: path for n, path in state.handlers.items() if is_nvidia_runtime(path)}
            if programs and engine.leave:
                how = f"`nvct runtime status` says how to change {engine.platform}"
                say(f"{engine.config} is not changed: {how}")
            elif programs:
                found.append(_move(engine, state, programs))
    return found


def _engines() -> list[Engine]:
    """Return the engines of this host whose programs and files can be trusted."""
    return [each for each in runtime_engine.engines() if not each.foreign and each.root == "/"]


def not_moved(errors: list[NvctError]) -> Iterator[Item]:
    """Yield options of dockerd, and runtimes of containerd's v1 shims, that are NVIDIA's.

    The options are those of running daemons, and of units in /etc.
    """
    here = [each for each in processes.running(runtime_engine.PROC) if not each.container]
    runs = [(f"process {process.pid}", process.args) for process in here]
    pattern = f"/{migration.UNITS_OF_ADMINS}/docker.service"
    units = sorted(glob.glob(pattern) + glob.glob(f"{pattern}.d/*.conf"))
    for path in units:
        with collected(errors):
            runs.append((path, tuple(state_of(path).text.split())))
    for where, args in runs:
        values = processes.options(args, "add-runtime", "default-runtime")
        programs = [text for text in values if "nvidia" in text]
        if programs and any("dockerd" in os.path.basename(word) for word in args):
            why = f"an option of dockerd sets {' and '.join(programs)}: change it by hand"
            yield Item(path=where, why=why)
    for engine in _engines():
        if engine.engine == "containerd":
            with collected([]):  # the engine's own row has this error
                document = toml_file.parse(state_of(engine.config).data, engine.config)
                yield from _first_shims(document, engine.config)


def _first_shims(document: dict[str, Any], path: str) -> Iterator[Item]:
    for name in ("linux", LINUX_V1):
        program = str(toml_file.table(document, ("plugins", name), path).get("runtime", ""))
        if is_nvidia_runtime(program):
            why = f"plugin {name} has runtime {program}: change it by hand to {own(program)}"
            yield Item(path=path, why=why)


def _move(engine: Engine, state: State, programs: Mapping[str, str]) -> Move:
    handlers, reasons = [], []
    for name, program in programs.items():
        path = own(program)
        if is_own(program, engine.path):
            reasons.append(f"runtime {name} is nvct's already")
        elif not os.access(path, os.X_OK):
            reasons.append(f"runtime {name} stays {program}: {path} is not installed")
        else:
            handlers.append(Handler(name=name, path=path))
            reasons.append(f"runtime {name}: {program} becomes {path}")
    options = EngineOptions(
        engine=engine.engine,
        handlers=tuple(handlers),
        # Set again, because NVIDIA's drop-in, which may set it, can be removed later.
        default=state.default if state.default in programs else "",
        cdi=state.cdi is True and engine.engine in ("docker", "containerd"),
        config=modules.CONFIG[engine.engine],
        in_place=True,
    )
    options = runtime_engine.fitted(options, engine, drop_in=False)
    module = modules.of(engine.engine)
    change = module.plan(options, Files()) if handlers else Change()
    if handlers and not change.edits:
        names = ", ".join(f"{handler.name} stays {programs[handler.name]}" for handler in handlers)
        reasons = [f"runtime {names}: nvct's entry exists, but has no effect", *change.notes]
    why = "; ".join(reasons)
    items = [Item(path=options.config, why=why)]
    if change.edits:
        items = [migration.edited(edit, why) for edit in change.edits]
    return Move(options=options, engine=engine, items=items)


@contextmanager
def engines_or_none(moves: Sequence[Move], journal: Journal, mode: str) -> Iterator[None]:
    """Move the engines; undo that after an error in a move or in the block."""
    done: list[tuple[Move, Change]] = []
    try:
        for move in moves:
            if move.items[0].action != STAYS:
                done.insert(0, (move, carry_out(move.options, move.engine, journal, mode)))
        yield
    except BaseException:
        failed: list[NvctError] = []
        for move, change in done:
            edits = [
                FileEdit(path=edit.path, before=edit.after, after=edit.before)
                for edit in reversed(change.edits)
            ]
            former = replace(change, edits=tuple(edits), notes=())
            with collected(failed):
                carry_out(move.options, move.engine, journal, mode, former)
        for error in failed:
            say(f"not undone: {line('nvct', error)}; `nvct migrate back` tries again")
        raise


def interrupted(journal: Journal) -> list[EngineOptions]:
    """Return the options of engines whose change was cut short by a kill."""
    pages = []
    for path in journal.paths():
        try:
            pages.append(journal.load(path))
        except DamagedJournalError as error:
            say(f"warning: {error.message}; {error.hint}")
    return [page.pending.options for page in pages if page.pending]


def carry_out(
    options: EngineOptions,
    engine: Engine | None,
    journal: Journal,
    mode: str,
    change: Change | None = None,
) -> Change:
    """Configure an engine, or make `change`, which undoes; first settle one that was cut short."""
    transaction = runtime_engine.transaction(
        options, engine, journal, reload_mode=mode, removing=change is not None
    )
    made = transaction.configure(options, change)
    for note in made.notes:
        say(f"note: {note}")
    return made


def say_what_names_own() -> None:
    """Print which files of engines still start nvct's runtime."""
    for engine in _engines():
        with collected([]):
            state = modules.of(engine.engine).state(options_for(engine), Files())
            for name, program in state.handlers.items():
                if is_nvidia_runtime(program) and is_own(program, engine.path):
                    say(f"{engine.edit or engine.config}: runtime {name} is still {program}")
