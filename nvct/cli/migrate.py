# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct migrate plan, apply, back: a host moves from NVIDIA's programs, and back."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import click

from nvct import paths
from nvct.cli.context import say, settings_in_force, tell
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import format_option, need_host, show
from nvct.cli.refresh import OUTPUT, OUTPUT_ENV
from nvct.cli.runtime import configure as runtime
from nvct.cli.runtime import engine as runtime_engine
from nvct.cli.runtime.options import STATE_DIR_OPTION, own_folder
from nvct.cli.runtime.options import state_dir as folder_of
from nvct.compile import live_host, published_spec
from nvct.config import editing, load
from nvct.doctor import fix, mends, migration
from nvct.doctor.migration import STAYS, Item
from nvct.doctor.model import count
from nvct.doctor.parts import UNITS
from nvct.engine import command, modules
from nvct.engine.journal import Journal
from nvct.engine.model import Change, Engine, EngineOptions, FileEdit, Files, Handler, State
from nvct.engine.modules import Module
from nvct.engine.status import options_for
from nvct.engine.undo import is_nvidia_runtime
from nvct.errors import HostError, NvctError
from nvct.host.roots import Roots

WATCH, SERVICE = UNITS
BACK = "`nvct migrate back` takes it back"
NOTHING = "nothing to move"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One engine that starts NVIDIA's runtime, and what makes it start nvct's."""

    options: EngineOptions
    engine: Engine
    items: Sequence[Item]


@click.command(cls=GoStyle)
@STATE_DIR_OPTION
@format_option("text")
def plan(*, state_dir: str | None, form: str) -> None:
    """Print what apply would change, a file a line; change nothing.

    Files of engines, hook files, specifications of nvidia-ctk and units in /etc are covered.
    config.toml stays as it is: nvct reads it.

    Example: sudo nvct migrate plan
    """
    need_host("migrate")
    journal = Journal(folder_of(state_dir))
    if journal.load(f"{journal.folder}/{migration.NAME}").pending or _interrupted(journal):
        say(f"an earlier change was cut short: apply begins it anew, and {BACK}")
    items = [item for move in _moves() for item in move.items] + list(_other_items())
    document = []
    for item in items:
        edit = FileEdit(path=item.path, before=item.before.content, after=item.after.content)
        row = {"path": item.path, "action": item.action, "why": item.why}
        document.append({**row, "diff": "".join(runtime.diff(edit))})
    show(form, document, map(str, items))
    if all(item.action == STAYS for item in items):
        say(NOTHING)


@click.command(cls=GoStyle)
@STATE_DIR_OPTION
@runtime_engine.RELOAD
def apply(*, state_dir: str | None, reload_mode: str) -> None:
    """Move this host from NVIDIA's programs to nvct: all of it, or nothing.

    What plan prints is done, and engines whose files change are reloaded; containers go on. nvct
    migrate back takes it back.

    Example: sudo nvct migrate apply
    """
    need_host("migrate")
    folder = folder_of(state_dir)
    others = _transaction(folder)
    with others.alone():
        _apply(others, Journal(folder), reload_mode)


@click.command(cls=GoStyle)
@STATE_DIR_OPTION
@runtime_engine.RELOAD
@click.pass_context
def back(ctx: click.Context, *, state_dir: str | None, reload_mode: str) -> None:
    """Take back what apply and nvct runtime configure did; edits by others stay.

    Example: sudo nvct migrate back
    """
    need_host("migrate")
    folder = folder_of(state_dir)
    with _transaction(folder).alone() if os.path.isdir(folder) else nullcontext():
        ctx.invoke(runtime.undo, state_dir=folder, reload_mode=reload_mode)
        journal = Journal(folder)
        page = journal.load(f"{folder}/{migration.NAME}")
        record = page.pending or page.done
        if record is None:
            return
        is_done = _transaction(folder).undo()
        _tell_systemd([entry.path for entry in record.entries])
    _say_what_is_needed("keep nvct until then", by_own=True)
    sys.exit(0 if is_done else 1)


def _own(program: str) -> str:
    """Return the path of nvct's program of the same name.

    Raises:
        HostError: nvct's programs are not found.
    """
    folder = own_folder()
    if not folder:
        raise HostError(
            f"{paths.SHIM_PROGRAM} of nvct is not beside nvct",
            hint="install nvct's packages, or use bin/nvct of the bundle",
        )
    return f"{folder}/{os.path.basename(program)}"


def _is_own(program: str, path: str | None = None) -> bool:
    """Report whether an engine that looks a program up on its PATH gets nvct's."""
    there = shutil.which(program, path=path or ":".join(paths.DEFAULT_PATH_DIRS)) or ""
    own = os.path.join(own_folder(), os.path.basename(there))
    return bool(there and own_folder()) and os.path.realpath(there) == os.path.realpath(own)


def _apply(others: fix.Transaction, journal: Journal, reload_mode: str) -> None:
    others.settle()
    for options in _interrupted(journal):
        nothing = Change(engine=options.engine)
        _carry_out(nothing, options, runtime_engine.reader(options), journal, reload_mode)
    moves, other_items = _moves(), list(_other_items())
    states = {item.path: item.after for item in other_items if item.action != STAYS}
    steps = [fix.Step(name="the other files", plan=lambda: states)]
    with _engines_or_none(moves, journal, reload_mode):
        if states and not others.carry_out(steps):
            raise HostError("the move failed, for the reason above", hint="nothing was changed")
    items = [item for move in moves for item in move.items] + other_items
    tell(*map(str, items))
    _tell_systemd(states)
    _say_what_is_needed("apply again once NVIDIA's packages are removed", by_own=False)
    say(NOTHING if all(item.action == STAYS for item in items) else f"done: {BACK}")


# The engines


def _moves() -> list[Move]:
    """Return the engines of this host that start NVIDIA's runtime.

    Raises:
        NvctError: nvct's runtime is not here; the files of one cannot be read or edited.
    """
    moves = []
    for engine in runtime_engine.engines():
        if engine.foreign or engine.root != "/":
            continue
        try:
            state = modules.of(engine.engine).state(options_for(engine), Files())
        except NvctError:
            if engine.leave:  # its owner understands it
                continue
            raise
        programs = {n: path for n, path in state.handlers.items() if is_nvidia_runtime(path)}
        if programs and engine.leave:
            say(f"{engine.config} stays: `nvct runtime status` says how {engine.platform} changes")
        elif programs:
            moves.append(_move(engine, state, programs))
    return moves


def _move(engine: Engine, state: State, programs: Mapping[str, str]) -> Move:
    handlers, reasons = [], []
    for name, program in programs.items():
        own = _own(program)
        if _is_own(program, engine.path):
            reasons.append(f"runtime {name} is nvct's already")
        elif not os.access(own, os.X_OK):
            reasons.append(f"runtime {name} stays {program}: {own} is not installed")
        else:
            handlers.append(Handler(name=name, path=own))
            reasons.append(f"runtime {name}: {program} becomes {own}")
    options = EngineOptions(
        engine=engine.engine,
        handlers=tuple(handlers),
        # What is said in a drop-in of NVIDIA's would go with it.
        default=state.default if state.default in programs else "",
        cdi=state.cdi is True and engine.engine in ("docker", "containerd"),
        config=modules.CONFIG[engine.engine],
    )
    options = runtime_engine.fitted(options, engine, drop_in=False)
    edits = modules.of(engine.engine).plan(options, Files()).edits if handlers else ()
    why = "; ".join(reasons)
    items = [Item(path=options.config, why=why)]
    if edits:
        items = [migration.edited(edit, why) for edit in edits]
    return Move(options=options, engine=engine, items=items)


@contextmanager
def _engines_or_none(moves: Sequence[Move], journal: Journal, mode: str) -> Iterator[None]:
    """Move the engines; after an error, there or in the block, take that back."""
    done: list[tuple[Move, Change]] = []
    try:
        for move in moves:
            if move.items[0].action != STAYS:
                done.insert(0, (move, _configure(move.options, move.engine, journal, mode)))
        yield
    except BaseException:
        for move, change in done:
            edits = [
                FileEdit(path=edit.path, before=edit.after, after=edit.before)
                for edit in reversed(change.edits)
            ]
            former = replace(change, edits=tuple(edits), notes=())
            _carry_out(former, move.options, move.engine, journal, mode)
        raise


def _interrupted(journal: Journal) -> list[EngineOptions]:
    """Return what was being configured in an engine as the process was killed."""
    pages = map(journal.load, journal.paths())
    return [page.pending.options for page in pages if page.pending]


def _carry_out(
    change: Change, options: EngineOptions, engine: Engine | None, journal: Journal, mode: str
) -> None:
    """Make a change that is planned already, after taking back one that was cut short."""
    transaction = runtime_engine.transaction(
        options, engine, journal, reload_mode=mode, removing=True
    )
    module = transaction.module
    planned = SimpleNamespace(SYNTAX=module.SYNTAX, state=module.state, plan=lambda *_: change)
    transaction.module = cast("Module", planned)
    for note in transaction.configure(options).notes:
        say(f"note: {note}")


def _configure(options: EngineOptions, engine: Engine, journal: Journal, mode: str) -> Change:
    transaction = runtime_engine.transaction(options, engine, journal, reload_mode=mode)
    change = transaction.configure(options)
    for note in change.notes:
        say(f"note: {note}")
    return change


# All other files


def _other_items() -> Iterator[Item]:
    """Yield config.toml, specifications, units, hook files, and links for old containers.

    Raises:
        NvctError: one cannot be read; nvct's specification cannot be made.
    """
    settings = settings_in_force()
    data = load.read(settings.path) if settings.path else None
    if data is not None:
        unknown = "".join(f"; {text}" for text in editing.unknown_keys(load.text(data)))
        yield Item(path=settings.path, why=f"nvct reads it{unknown}")
    specs = migration.incumbents_specs(settings.spec_dirs)
    output = _output()
    host = mends.Host(
        roots=live_host.roots_of(settings),
        settings=settings,
        output=output,
        options=["--config", settings.path] if data is not None else [],
        say=say,
    )
    publish = mends.Mend(mends.PUBLISH, ())
    yield from migration.specifications(
        specs, output, lambda path: mends.step(publish, replace(host, output=path))
    )
    yield from migration.units()
    yield from migration.hooks(_own(paths.RUNTIME_HOOK_PROGRAM))
    yield from migration.links(migration.programs_in_use(), own_folder())


def _output() -> str:
    """Return where nvct's specification goes: where its service writes it, which runs at boot.

    Without the service, it is "": where nvidia-ctk's is, as that may be in a folder that lasts.
    """
    service = published_spec.variables_of_service(published_spec.REFRESH_ENV)
    named = os.environ.get(OUTPUT_ENV) or service.get(OUTPUT_ENV)
    if not named and not migration.own_unit(SERVICE):
        return ""
    return published_spec.output_path(named or OUTPUT)


def _transaction(folder: str) -> fix.Transaction:
    name, rest = migration.NAME, migration.rest
    return fix.Transaction(folder, Roots(), say, name=name, accumulates=True, rest=rest)


def _tell_systemd(changed: Iterable[str]) -> None:
    """Have systemd read units that were changed, and watch what an enabled one names."""
    folder = f"/{migration.UNITS_OF_ADMINS}"
    has_units = any(path.startswith(f"{folder}/") for path in changed)
    if not has_units or not os.path.isdir("/run/systemd/system"):
        return
    is_enabled = glob.glob(f"{folder}/*.wants/{WATCH}")
    for words in (["daemon-reload"], ["restart" if is_enabled else "stop", WATCH]):
        done = command.run(["systemctl", *words])
        if done.status:
            say(f"warning: systemctl {' '.join(words)}: {done.reason}")


def _say_what_is_needed(advice: str, *, by_own: bool) -> None:
    """Name the runtimes that running containers need: nvct's, or the others."""
    for program, ids in migration.programs_in_use().items():
        if _is_own(program) == by_own:
            say(f"{program} is needed to stop {count(len(ids), 'container')}: {advice}")
