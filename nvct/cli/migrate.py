# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct migrate plan, apply, back: move a host from NVIDIA's programs, and back."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import click

from nvct import paths
from nvct.cli import migrate_engines as engines
from nvct.cli.context import say, settings_in_force, tell
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import format_option, need_host, raise_first, show
from nvct.cli.refresh import OUTPUT, OUTPUT_ENV
from nvct.cli.runtime import configure as runtime
from nvct.cli.runtime import engine as runtime_engine
from nvct.cli.runtime.options import STATE_DIR_OPTION, own_folder
from nvct.cli.runtime.options import state_dir as folder_of
from nvct.compile import live_host, published_spec
from nvct.config import editing, load
from nvct.doctor import fix, mends, migration
from nvct.doctor.migration import STAYS, Item, collected
from nvct.doctor.model import count
from nvct.doctor.parts import UNITS
from nvct.engine import command
from nvct.engine.journal import DamagedJournalError, Journal, NewerJournalError, Page
from nvct.engine.model import Change, FileEdit
from nvct.engine.writing import PathState, state_of
from nvct.errors import HostError, NvctError
from nvct.host.roots import Roots

WATCH, SERVICE = UNITS
NOTHING = "nothing to move"


@click.command(cls=GoStyle)
@STATE_DIR_OPTION
@format_option("text")
def plan(*, state_dir: str | None, form: str) -> None:
    """Print what apply would change, one file per line; change nothing.

    The files are engines' files, hook files, specifications of nvidia-ctk and units in /etc.
    config.toml is not changed: nvct reads it.

    Example: sudo nvct migrate plan
    """
    need_host("migrate")
    journal = Journal(folder_of(state_dir))
    errors: list[NvctError] = []
    with collected(errors):
        page = journal.load(f"{journal.folder}/{migration.NAME}")
        if _is_cut_short(page) or engines.interrupted(journal):
            way_back = _way_back(state_dir)
            say(f"an earlier change was cut short: apply starts it again, and {way_back}")
    items = [item for move in engines.moves(errors) for item in move.items]
    items += _other_items(errors, dry_run=True)
    document = []
    for item in items:
        edit = FileEdit(path=item.path, before=item.before.content, after=item.after.content)
        row = {"path": item.path, "action": item.action, "why": item.why}
        document.append({**row, "diff": "".join(runtime.diff(edit))})
    show(form, document, map(str, items))
    raise_first(errors)
    if all(item.action == STAYS for item in items):
        say(NOTHING)


@click.command(cls=GoStyle)
@STATE_DIR_OPTION
@runtime_engine.RELOAD
def apply(*, state_dir: str | None, reload_mode: str) -> None:
    """Move this host from NVIDIA's programs to nvct completely, or change nothing.

    Makes the changes that plan prints, and reloads engines whose files change; containers keep
    running. nvct migrate back undoes it.

    Example: sudo nvct migrate apply
    """
    need_host("migrate")
    folder = folder_of(state_dir)
    others = _transaction(folder)
    with others.alone():
        if _apply(others, Journal(folder), reload_mode):
            say(f"done: {_way_back(state_dir)}")
        else:
            say(NOTHING)


@click.command(cls=GoStyle)
@STATE_DIR_OPTION
@runtime_engine.RELOAD
@click.pass_context
def back(ctx: click.Context, *, state_dir: str | None, reload_mode: str) -> None:
    """Undo apply and nvct runtime configure; edits by others stay.

    Example: sudo nvct migrate back
    """
    need_host("migrate")
    folder = folder_of(state_dir)
    with _transaction(folder).alone() if os.path.isdir(folder) else nullcontext():
        errors: list[NvctError] = []
        journal = Journal(folder)
        page = Page()
        with collected(errors):
            page = journal.load(f"{folder}/{migration.NAME}")
        record = page.pending or page.done
        if record is None or journal.paths():
            _undo_engines(ctx, folder, reload_mode, errors)
        if record is not None:
            with collected(errors):
                _transaction(folder).undo()
    _say_what_is_needed("keep nvct until they have ended", by_own=True)
    raise_first(errors)
    sys.exit(int(_is_cut_short(journal.load(f"{folder}/{migration.NAME}"))))


def _undo_engines(
    ctx: click.Context, folder: str, reload_mode: str, errors: list[NvctError]
) -> None:
    """Undo the changes of engines; if that fails, name the files that keep nvct's path."""
    with collected(errors):
        try:
            ctx.invoke(runtime.undo, state_dir=folder, reload_mode=reload_mode)
        except DamagedJournalError as error:
            if not isinstance(error, NewerJournalError):
                error.hint = f"nvct runtime undo --remove --state-dir={folder} works without it"
            raise
        finally:
            if sys.exc_info()[1]:
                engines.say_what_names_own()


def _apply(others: fix.Transaction, journal: Journal, reload_mode: str) -> bool:
    """Move the host, and report whether anything changed."""
    others.settle()
    for options in engines.interrupted(journal):
        engine = runtime_engine.of_file(runtime_engine.engines(), options)
        engines.carry_out(options, engine, journal, reload_mode, Change())
    errors: list[NvctError] = []
    moves, other_items = engines.moves(errors), list(_other_items(errors))
    raise_first(errors)
    states = {item.path: item.after for item in other_items if item.action != STAYS}

    def planned() -> Mapping[str, PathState]:
        for item in other_items:  # the engines have been restarted meanwhile
            if item.path in states and not state_of(item.path).is_like(item.before):
                raise HostError(f"another program just changed {item.path}", hint="try again")
        return states

    steps = [fix.Step(name="the other files", plan=planned)]
    with engines.engines_or_none(moves, journal, reload_mode):
        if states and not others.carry_out(steps):
            raise HostError(
                "the move failed for the reason above", hint="correct that, and run it again"
            )
    items = [item for move in moves for item in move.items] + other_items
    tell(*map(str, items))
    _say_what_is_needed("apply again once NVIDIA's packages are removed", by_own=False)
    return any(item.action != STAYS for item in items)


def _way_back(state_dir: str | None) -> str:
    option = f" --state-dir={state_dir}" if state_dir else ""
    return f"`nvct migrate back{option}` undoes it"


def _is_cut_short(page: Page) -> bool:
    """Report whether an interrupted change must be finished; containers' links can wait."""
    return page.pending is not None and not all(map(migration.needed, page.pending.entries))


def _other_items(errors: list[NvctError], *, dry_run: bool = False) -> Iterator[Item]:
    """Yield config.toml, specifications, units, hook files, and links for old containers.

    Errors about unreadable files and specifications that cannot be made are added to `errors`.
    With `dry_run`, no view of the driver is made for a specification.
    """
    with collected(errors):
        settings = settings_in_force()
        data = load.read(settings.path) if settings.path else None
        if data is not None:
            unknown = "".join(f"; {text}" for text in editing.unknown_keys(load.text(data)))
            yield Item(path=settings.path, why=f"nvct reads it{unknown}")
        specs = migration.incumbents_specs(settings.spec_dirs)
        yield from migration.other_specs(settings.spec_dirs, specs)
        output = _output()
        host = mends.Host(
            roots=live_host.roots_of(settings),
            settings=settings,
            output=output,
            options=["--config", settings.path] if data is not None else [],
            say=say,
            dry_run=dry_run,
        )
        publish = mends.Mend(mends.PUBLISH, ())
        yield from migration.specifications(
            specs, output, lambda path: mends.step(publish, replace(host, output=path))
        )
    yield from engines.not_moved(errors)
    yield from migration.units(errors)
    with collected(errors):
        yield from migration.hooks(engines.own(paths.RUNTIME_HOOK_PROGRAM), errors)
    with collected(errors):
        yield from migration.links(migration.programs_in_use(), own_folder())


def _output() -> str:
    """Return the path of nvct's specification, which its service writes at boot.

    Without the service it is "": nvct then replaces nvidia-ctk's file, where a boot may keep it.
    """
    service = published_spec.variables_of_service(published_spec.REFRESH_ENV)
    named = os.environ.get(OUTPUT_ENV) or service.get(OUTPUT_ENV)
    if not named and not migration.own_unit(SERVICE):
        return ""
    return published_spec.output_path(named or OUTPUT)


def _transaction(folder: str) -> fix.Transaction:
    return fix.Transaction(
        folder,
        Roots(),
        say,
        name=migration.NAME,
        accumulates=True,
        rest=migration.rest,
        needed=migration.needed,
        tell=_tell_systemd,
    )


def _tell_systemd(changed: Sequence[str]) -> None:
    """Make systemd read changed units, and start or stop the path unit.

    NVIDIA's service stays active after it has run, and its path unit cannot start it again until
    it is stopped.
    """
    folder = f"/{migration.UNITS_OF_ADMINS}"
    has_units = any(path.startswith(f"{folder}/") for path in changed)
    if not has_units or not os.path.isdir("/run/systemd/system"):
        return
    is_enabled = glob.glob(f"{folder}/*.wants/{WATCH}")
    calls = [["daemon-reload"], ["restart" if is_enabled else "stop", WATCH]]
    if not command.run(["systemctl", "is-active", "--quiet", SERVICE]).status:
        calls.append(["stop", SERVICE])
    for words in calls:
        done = command.run(["systemctl", *words])
        if done.status:
            say(f"warning: systemctl {' '.join(words)}: {done.reason}")


def _say_what_is_needed(advice: str, *, by_own: bool) -> None:
    """Print the runtimes that running containers need: nvct's if `by_own`, else the others."""
    for program, ids in migration.programs_in_use().items():
        if engines.is_own(program) == by_own:
            say(f"{program} is needed to stop {count(len(ids), 'container')}: {advice}")
