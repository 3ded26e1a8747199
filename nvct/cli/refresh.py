# SPDX-License-Identifier: Apache-2.0
"""Command: nvct refresh."""

from __future__ import annotations

import os

import click

from nvct.cli.context import say, tell
from nvct.compile import refresh as compiled
from nvct.config.load import load, path_from
from nvct.container.plan.store import run_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sized

    from nvct.container.plan.model import Plan


@click.command()
@click.argument("kind", type=click.Choice(["all", "registry", "own"]), default="all")
def refresh(kind: str) -> None:
    """Compile plans now, so that the next create finds them ready.

    Example: nvct refresh own
    """
    config = path_from(os.environ)
    folder = run_dir(os.environ)
    if kind in ("all", "registry"):
        plan = compiled.registry_plan(config, folder)
        click.echo(
            f"registry: {_count(plan['devices'], 'device')} in {_count(plan['specs'], 'spec')}"
        )
        for problem in plan["problems"]:
            say(f"warning: {problem}")
        for name, files in plan["conflicts"].items():
            say(f"warning: {name} is defined by {' and '.join(files)}")
    if kind in ("all", "own"):
        _maintain_farm(config, folder)
        plan = compiled.own_plan(config, folder)
        click.echo(f"own: {len(plan['devices'])} device names")
        _print_layout(config, plan)
    if kind == "all":
        _rebuild_extras(config, folder)


def _count(items: Sized, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _rebuild_extras(config: str, folder: str) -> None:
    """Recompile the plans of features besides GPUs that containers have requested."""
    from nvct.compile import mode_plans as extras

    for feature, plan, error in extras.rebuild(config, folder):
        if plan is not None:
            click.echo(f"{feature}: {len(plan['devices'])} device names")
        else:
            say(f"warning: {feature}: {error} (it is compiled when it is asked for)")


def _print_layout(config: str, plan: Plan) -> None:
    """Print the layout that containers get, so that hosts of a fleet do not differ silently."""
    settings = load(config)
    if settings.wants_view:
        from nvct.compile import farm_plan

        tell(f"own: {farm_plan.describe_layout(settings, plan.get('farm'))}")


def _maintain_farm(config: str, folder: str) -> None:
    """Verify the driver's views and collect unused ones, before the plan in force is replaced."""
    settings = load(config)
    if not settings.wants_view:
        return
    from nvct.compile import farm_plan, live_host

    needed = farm_plan.needs_in_force(settings, live_host.roots_of(settings), folder)
    for sentence in farm_plan.verify_and_collect(settings, needed):
        say(f"warning: {sentence}")
