# SPDX-License-Identifier: Apache-2.0
"""Command: nvct runtime undo."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from nvct.cli.options import GoStyle, say
from nvct.cli.runtime import engine as runtime_engine
from nvct.cli.runtime import options as runtime_options
from nvct.errors import NvctError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.engine.journal import Journal
    from nvct.engine.model import EngineOptions


@click.command(cls=GoStyle)
@click.argument("engines", nargs=-1, metavar="[ENGINE]...")
@click.option("--runtime", "engine", metavar="ENGINE", help="The same as the argument ENGINE.")
@click.option("--config", help="The engine's main file, where it is not the usual one.")
@click.option("--remove", is_flag=True,
              help="Also remove handlers that nvct did not register.")  # fmt: skip
@runtime_engine.RELOAD
@runtime_options.STATE_DIR_OPTION
def undo(
    *,
    engines: tuple[str, ...],
    engine: str | None,
    config: str | None,
    remove: bool,
    reload_mode: str,
    state_dir: str | None,
) -> None:
    """Restore the engines' files from before configure: of all engines, or those named.

    If others changed a file since, only our part is removed from it.

    Example: nvct runtime undo docker
    """
    from nvct.engine.journal import Journal

    journal = Journal(runtime_options.state_dir(state_dir))
    errors: list[NvctError] = []
    for name in (*engines, *([engine] if engine else [])) or (None,):
        recorded = runtime_engine.recorded(journal, name, config, errors, remove=remove)
        if not recorded and name:
            bare = runtime_engine.bare(name, config)
            recorded = [bare] if remove else []
        for options in recorded:
            try:
                _undo(options, journal, reload_mode=reload_mode, remove=remove)
            except NvctError as error:  # an error of one engine does not stop the others
                errors.append(error)
        if not recorded and not errors:
            hint = "; --remove removes its handlers nevertheless" if name else ""
            if os.geteuid() and not state_dir:
                hint += "; what root has configured, root can undo: use sudo"
            target = name or "any engine"
            say(f"nothing to undo: {journal.folder} has no record of {target}{hint}")
    for later_error in errors[1:]:
        say(f"{later_error.message} [{later_error.code}]")
    if errors:
        raise errors[0]


def _undo(options: EngineOptions, journal: Journal, *, reload_mode: str, remove: bool) -> None:
    detected = runtime_engine.reader(options)
    transaction = runtime_engine.transaction(
        options, detected, journal, reload_mode=reload_mode, removing=True
    )
    outcome = transaction.undo(options, aside=remove)
    if remove:
        removal = transaction.remove(options)
        outcome = replace(
            removal, edits=(*outcome.edits, *removal.edits), notes=(*outcome.notes, *removal.notes)
        )
    for note in outcome.notes:
        say(f"note: {note}")
    for edit in outcome.edits:
        say(f"{edit.path} removed" if edit.after is None else f"{edit.path} restored")
    if not outcome.edits:
        say(f"{os.path.basename(options.config)} of {options.engine} is unchanged")
