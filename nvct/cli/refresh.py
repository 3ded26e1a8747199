# SPDX-License-Identifier: Apache-2.0
"""Command: nvct refresh."""

from __future__ import annotations

import os

import click

from nvct.config.load import path_from
from nvct.plan.store import run_dir
from nvct.refresh import compiled


@click.command()
@click.argument("what", type=click.Choice(["all", "registry", "own"]), default="all")
def refresh(what: str) -> None:
    """Compile plans now, so that the next create finds them ready.

    Example: nvct refresh own
    """
    config = path_from(os.environ)
    folder = run_dir(os.environ)
    if what in ("all", "registry"):
        plan = compiled.registry_plan(config, folder)
        click.echo(f"registry: {len(plan['devices'])} devices in {len(plan['specs'])} specs")
        for problem in plan["problems"]:
            click.echo(f"warning: {problem}", err=True)
        for name, files in plan["conflicts"].items():
            click.echo(f"warning: {name} is defined by {' and '.join(files)}", err=True)
    if what in ("all", "own"):
        plan = compiled.own_plan(config, folder)
        click.echo(f"own: {len(plan['devices'])} device names")
