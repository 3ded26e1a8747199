# SPDX-License-Identifier: Apache-2.0
"""Command: nvct log. Options, call and print, no logic."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping

import click

from nvct.cli import screen
from nvct.cli.context import say, settings_in_force
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import container_names, format_option, need_host, say_if_inside
from nvct.doctor import decisions, one_container
from nvct.doctor.containers import SHORT, Containers
from nvct.doctor.decisions import container_of, subject
from nvct.doctor.model import date
from nvct.doctor.node import Node
from nvct.engine.engine_files import own_names
from nvct.errors import NvctError, printable

HEAD = len("2026-11-24 00:00:00 refused ")  # The start of a line: date, time and outcome
INDENT = 4
NOTHING = "nothing recorded"
OUTCOMES = ("given", "ignored", "refused", "changed")


@click.command(cls=GoStyle)
@click.argument("container", default="", shell_complete=container_names)
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only decisions of this kind.")
@click.option("--since", type=float, metavar="MINUTES", help="Only the last minutes.")
@click.option("--follow", "-f", is_flag=True, help="Go on, and show each new decision.")
@format_option("text")
def log(
    *, container: str, outcome: str | None, since: float | None, follow: bool, form: str
) -> None:
    """Show nvct's decisions about containers that asked for a GPU, the oldest first.

    CONTAINER is a container's id, another part of its bundle's path, or, while it runs or Docker
    or Podman still has it, its name. For decisions of the agent, it is a part of the name of the
    resource, the claim or the device. Runtime, hooks and agent each keep the last decisions, at
    most half a megabyte. A decision's time is split into reading config.toml, deciding and
    delivering. Users other than root see the decisions about their own engines' containers.

    Example: sudo nvct log --outcome refused --since 60
    """
    need_host("log")
    wanted = decisions.Filter(
        container=container,
        ids=_ids(container) if container else (),
        outcome=outcome or "",
        since_s=time.time() - 60 * since if since is not None else 0.0,
    )
    containers, own, told = Containers(), own_names(os.environ), set[str]()
    containers.refresh()

    def name_of(id_: str) -> str:
        return own.get(id_) or containers.name_of_id(id_)

    places = decisions.folders(os.environ)
    found = decisions.look(places, wanted)
    for problem in found.problems:
        say(f"warning: {problem}")
    if not found.records:
        say(NOTHING)
        say_if_inside()
    if follow:
        for record in decisions.follow(places, wanted, screen.wait_for_end):
            _show(record, form, name_of, told)
        raise BrokenPipeError
    for record in found.records:
        _show(record, form, name_of, told)
    if not any(one.is_readable for one in found.rings):
        sys.exit(1)


def _show(
    record: Mapping[str, str], form: str, name_of: Callable[[str], str], told: set[str]
) -> None:
    """Print a record; a note's reason, which is mostly the same on a host, only the first time."""
    if form == "json":
        click.echo(json.dumps(record))
        return
    notes = record.get("notes", "").split("; ")
    shown = [f"{note.partition(': ')[0]}, as above" if note in told else note for note in notes]
    told.update(note for note in notes if ": " in note)
    record = {**record, "notes": "; ".join(shown)}
    line, color = text(record, name_of), "red" if record["outcome"] == "refused" else None
    head, rest = line[:HEAD], line[HEAD:]
    first, *more = screen.wrapped(head, rest, screen.columns(), INDENT)
    click.echo("\n".join([screen.colored(head, color) + first[HEAD:], *more]))


def _ids(word: str) -> tuple[str, ...]:
    try:
        return one_container.ids(Node(settings=settings_in_force(), env=os.environ), word)
    except NvctError:
        return ()


def text(record: Mapping[str, str], name_of: Callable[[str], str] | None = None) -> str:
    """Return a record as a line, with a container's name and short id instead of its path."""
    id_ = container_of(record)
    name = name_of(id_) if id_ and name_of else ""
    about = f"{name} {id_[:SHORT]}".lstrip() if id_ else subject(record)
    if record["outcome"] == "refused":
        hint = record.get("hint", "")
        what = f"{record.get('error', '')}{f'; {hint}' if hint else ''} [{record.get('code', '')}]"
    else:
        parts = (record.get(key, "") for key in ("asked", "mode", "result", "notes"))
        what = "; ".join(part for part in parts if part)
    steps = f": {record['steps']}" if "steps" in record else ""
    took = f" ({record['took']}{steps})" if "took" in record else ""
    return printable(f"{date(float(record['time']))} {record['outcome']:<8}{about}: {what}{took}")
