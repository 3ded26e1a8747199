# SPDX-License-Identifier: Apache-2.0
"""Command: nvct status. Options, call and print, no logic."""

from __future__ import annotations

import json
import os
import sys

import click

from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle, settings_in_force
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvct.doctor.model import Part

MARKS = {"ok": "ok", "absent": "-", "attention": "LOOK"}


@click.command(cls=GoStyle)
@format_option("text")
def status(*, form: str) -> None:
    """Show the health of this node; exit with 1 if something is wrong.

    Checks the configuration, the driver, the CDI specifications in force, the plans and views that
    containers use, the configuration of the engines, and the systemd units that keep the
    specification up to date.

    Example: sudo nvct status
    """
    parts = _parts()
    if form == "json":
        click.echo(json.dumps([part.to_dict() for part in parts], indent=2))
    else:
        click.echo("\n".join(text(parts)))
    sys.exit(1 if any(part.health == "attention" for part in parts) else 0)


def text(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the lines of a table."""
    for part in parts:
        for number, line in enumerate(part.lines):
            head = f"{part.name:<8} {MARKS[part.health]:<5}" if number == 0 else " " * 14
            yield f"{head} {printable(line)}".rstrip()


def _parts() -> list[Part]:
    from nvct.cli.runtime import engine
    from nvct.doctor import checks

    node = checks.Node(settings=settings_in_force(), env=os.environ, engines=engine.engines())
    return [check.look(node) for check in checks.named(checks.STATUS)]
