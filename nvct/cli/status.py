# SPDX-License-Identifier: Apache-2.0
"""Command: nvct status. Options, call and print, no logic."""

from __future__ import annotations

import json
import sys

import click

from nvct.cli.options import GoStyle, format_option, need_host
from nvct.cli.screen import COLORS, MARKS, colored, columns, wrapped
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvct.doctor.model import Part


@click.command(cls=GoStyle)
@format_option("text")
def status(*, form: str) -> None:
    """Show the health of this node; exit with 1 if something is wrong.

    Checks the configuration, the driver, the CDI specifications in force, the plans and views that
    containers use, the configuration of the engines, and the systemd units that keep the
    specification up to date.

    Example: sudo nvct status
    """
    need_host("status")
    parts = _parts()
    if form == "json":
        click.echo(json.dumps([part.to_dict() for part in parts], indent=2))
    else:
        click.echo("\n".join(text(parts, columns())))
    sys.exit(1 if any(part.health == "attention" for part in parts) else 0)


def text(parts: Sequence[Part], width: int = 0) -> Iterator[str]:
    """Yield the lines of a table; `width` is that of a terminal, 0 for no limit."""
    for part in parts:
        mark = MARKS[part.health]
        name = f"{part.name:<8} "
        for number, line in enumerate(part.lines):
            head = f"{name}{mark:<5} " if number == 0 else " " * 15
            first, *more = wrapped(head, printable(line), width)
            if number == 0:
                bold = mark == MARKS["attention"]
                shown = colored(mark, COLORS.get(mark), bold=bold)
                first = name + shown + first[len(name) + len(mark) :]
            yield first
            yield from more


def _parts() -> list[Part]:
    from nvct.cli.doctor import node_of_host
    from nvct.doctor import checks

    node = node_of_host()
    return [checks.result(check, node) for check in checks.named(checks.STATUS)]
