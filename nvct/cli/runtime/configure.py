# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk runtime configure; nvct runtime configure, plan and undo."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import click

from nvct.cli.context import say, tell
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import format_option, raise_first
from nvct.cli.runtime import engine as runtime_engine
from nvct.cli.runtime import options as runtime_options
from nvct.cli.runtime.options import Invocation
from nvct.doctor.docker import why_docker_cannot
from nvct.doctor.reasons import Reason
from nvct.engine import docker_host as host
from nvct.engine import modules, writing
from nvct.engine.journal import Journal
from nvct.engine.model import Change, EngineOptions, FileEdit, Files
from nvct.errors import NvctError
from nvct.host.roots import Roots

OptionValues: TypeAlias = Mapping[str, Any]  # the options of the command line, by name


DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Print what the files would hold; change nothing."
)


@click.command("configure", cls=GoStyle)
@DRY_RUN
@runtime_options.configure_options
@runtime_options.STATE_DIR_OPTION
def configure_ctk(**values: Any) -> None:  # noqa: ANN401  options, each with its own type
    """Register the runtime nvidia with a container engine.

    Only the requested settings change: comments, order and everything else in the engine's files
    stay. nvct runtime undo restores the files.

    Example: nvidia-ctk runtime configure --runtime=containerd --set-as-default
    """
    invocation = runtime_options.invocation_of(values, all_variants=False)
    _configure(invocation, values, reload_mode="")


@click.command(cls=GoStyle)
@DRY_RUN
@runtime_options.configure_options
@runtime_options.nvct_options
@runtime_options.STATE_DIR_OPTION
@runtime_engine.RELOAD
def configure(**values: Any) -> None:  # noqa: ANN401  options, each with its own type
    """Register nvidia, nvidia-cdi and nvidia-legacy with an engine, and reload it.

    As nvidia-ctk runtime configure. In addition, a running engine is reloaded; if it refuses the
    files or does not run with them, the former files are restored.

    Example: nvct runtime configure --runtime=containerd
    """
    invocation = runtime_options.invocation_of(values, all_variants=True)
    _configure(invocation, values, reload_mode=values["reload_mode"])


@click.command(cls=GoStyle)
@runtime_options.configure_options
@runtime_options.nvct_options
@format_option("diff")
def plan(**values: Any) -> None:  # noqa: ANN401  options, each with its own type
    """Print what nvct runtime configure would change, as a diff.

    Example: nvct runtime plan --runtime=docker --cdi.enabled
    """
    invocation = runtime_options.invocation_of(values, all_variants=True)
    if invocation.options is None:
        _write_hook(invocation, dry_run=True)
        return
    change = _planned(invocation.options)
    files = [{"path": edit.path, "diff": "".join(diff(edit))} for edit in change.edits]
    if values["form"] == "json":
        click.echo(json.dumps(files, indent=2))
    else:
        sys.stdout.writelines(file["diff"] for file in files)


def _configure(invocation: Invocation, values: OptionValues, *, reload_mode: str) -> None:
    """Configure the engine; an empty reload mode only writes its files."""
    if invocation.options is None:
        _write_hook(invocation, dry_run=values["dry_run"])
    elif values["dry_run"]:
        _print_files(invocation.options)
    else:
        journal = Journal(runtime_options.state_dir(values["state_dir"]))
        options, detected = invocation.options, invocation.engine
        transaction = runtime_engine.transaction(
            options, detected, journal, reload_mode=reload_mode or "none"
        )
        _print_outcome(options, transaction.configure(options))
        if options.engine == "docker":
            _say_what_needs_a_restart()


def _say_what_needs_a_restart() -> None:
    for finding in why_docker_cannot(host.look(Files(), Roots(), os.environ)):
        if finding.reason is Reason.EngineNotRestarted and finding.severity == "error":
            say(f"docker run --gpus: {finding.evidence}: {finding.remedy}")
            say("docker run --runtime=nvidia works without a restart")


def _print_outcome(options: EngineOptions, outcome: Change) -> None:
    """Print the result, in the words of nvidia-ctk."""
    for edit in outcome.edits:
        verb = "Removed empty config from" if edit.after is None else "Wrote updated config to"
        say(f"{verb} {edit.path}")
    for note in outcome.notes:
        say(note)
    if not outcome.edits:
        say(f"{options.engine} is configured already: unchanged")


def _planned(options: EngineOptions) -> Change:
    change = modules.of(options.engine).plan(options, Files())
    for note in change.notes:
        say(f"note: {note}")
    if not change.edits:
        say(f"{options.engine} is configured already: unchanged")
    return change


def _print_files(options: EngineOptions) -> None:
    change = _planned(options)
    if not change.edits:
        sys.stdout.write((Files().read(options.config) or b"").decode(errors="replace"))
    for edit in change.edits:
        if len(change.edits) > 1:
            tell(f"# {edit.path}")
        sys.stdout.write((edit.after or b"").decode(errors="replace"))


def diff(edit: FileEdit) -> Iterator[str]:
    """Yield the lines of a unified diff."""
    old, new = (
        (data or b"").decode(errors="replace").splitlines(keepends=True)
        for data in (edit.before, edit.after)
    )
    names = (
        ("/dev/null" if edit.before is None else edit.path),
        ("/dev/null" if edit.after is None else edit.path),
    )
    for line in difflib.unified_diff(old, new, *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _write_hook(invocation: Invocation, *, dry_run: bool) -> None:
    data = modules.hook_file(invocation.hook)
    if dry_run or not invocation.hook_file:
        sys.stdout.write(data.decode())
        return
    writing.write_file(invocation.hook_file, data, follow=True)
    say(f"Wrote {invocation.hook_file}")


@click.command(cls=GoStyle)
@click.argument("engines", nargs=-1, metavar="[ENGINE]...")
@click.option("--runtime", "engine", metavar="ENGINE", help="The same as the argument ENGINE.")
@click.option("--config", help="The engine's main file, if it is not the usual one.")
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
    """Restore the files of all engines, or of those named, as they were before configure.

    If another program changed a file since then, only nvct's part is removed from it.

    Example: nvct runtime undo docker
    """
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
                hint += "; use sudo to undo what root configured"
            target = name or "any engine"
            say(f"nothing to undo: {journal.folder} has no record of {target}{hint}")
    raise_first(errors)


def _undo(options: EngineOptions, journal: Journal, *, reload_mode: str, remove: bool) -> None:
    detected = runtime_engine.of_file(runtime_engine.engines(), options)
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
