# SPDX-License-Identifier: Apache-2.0
"""Command: nvct log. Options, call and print, no logic."""

from __future__ import annotations

import json
import os
import time

import click

from nvct.cli import screen
from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle, say, settings_in_force
from nvct.errors import NvctError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = len("2026-11-24 00:00:00 refused ")
"""Of a line: date, time and outcome."""
INDENT = 4
OUTCOMES = ("given", "ignored", "refused", "changed")


@click.command(cls=GoStyle)
@click.argument("container", default="")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Only decisions of this kind.")
@click.option("--since", type=float, metavar="MINUTES", help="Only the last minutes.")
@click.option("--follow", "-f", is_flag=True, help="Then show each new decision.")
@format_option("text")
def log(
    *, container: str, outcome: str | None, since: float | None, follow: bool, form: str
) -> None:
    """Show what was decided about containers that asked for a GPU, the oldest first.

    CONTAINER is a container's id, another part of its bundle's path, or the name of a running
    container; for decisions of the agent a part of the resource, the claim or the device. Runtime,
    hooks and agent keep the last decisions, each at most half a megabyte.

    Example: sudo nvct log --outcome refused --since 60
    """
    from nvct.doctor import decisions

    wanted = decisions.Filter(
        container=container,
        ids=_ids(container) if container else (),
        outcome=outcome or "",
        since_s=time.time() - 60 * since if since is not None else 0.0,
    )
    find = decisions.follow if follow else decisions.read
    empty = True
    for record in find(decisions.folders(os.environ), wanted):
        empty = False
        if form == "json":
            click.echo(json.dumps(record))
            continue
        line, color = text(record), "red" if record["outcome"] == "refused" else None
        head, rest = line[:HEAD], line[HEAD:]
        first, *more = screen.wrapped(head, rest, screen.columns(), INDENT)
        click.echo(screen.colored(head, color) + first[HEAD:])
        for each in more:
            click.echo(each)
    if empty:
        say("no such decision is recorded: the container asked for no GPU, its engine served it by"
            " CDI, or the record is gone")  # fmt: skip


def _ids(word: str) -> tuple[str, ...]:
    """Return the ids of the running containers with a name, an id or a process id."""
    from nvct.compile import live_host
    from nvct.doctor import one_container

    try:
        running = one_container.find(live_host.roots_of(settings_in_force()), word)
    except NvctError:
        return ()
    return tuple(one.id for one in running if one.id)


def text(record: Mapping[str, str]) -> str:
    """Return a record as a line."""
    from nvct.doctor.decisions import subject

    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(record["time"])))
    if record["outcome"] == "refused":
        hint = record.get("hint", "")
        what = f"{record.get('error', '')}{f'; {hint}' if hint else ''} [{record.get('code', '')}]"
    else:
        parts = (record.get(key, "") for key in ("asked", "mode", "result", "notes"))
        what = "; ".join(part for part in parts if part)
    took = f" ({record['took']})" if "took" in record else ""
    return printable(f"{when} {record['outcome']:<8}{subject(record)}: {what}{took}")
