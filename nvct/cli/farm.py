# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct farm build, list, gc, verify. Options, call and print, no logic."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from nvct.cli.context import say, settings_in_force, tell, warn
from nvct.cli.gostyle import GoGroup
from nvct.cli.options import format_option, show
from nvct.compile import live_host
from nvct.config.model import Config
from nvct.container.plan.store import run_dir
from nvct.doctor.model import count
from nvct.errors import printable
from nvct.farm import collect, of_host
from nvct.farm.build import build as make
from nvct.farm.collect import Needs, Status

NO_VIEWS = "no views: nvct farm build makes one"


@click.group(cls=GoGroup, context_settings={"help_option_names": ["-h", "--help"]})
def farm() -> None:
    """Keep views of the driver's files, which containers get by one mount.

    A view holds the user space of one driver version; an upgrade of the driver does not change
    it. By default, nvct uses a view only if it can be made of links. In config.toml, layout =
    "farm" also allows a view of bind mounts, and layout = "classic" allows no view.
    """


@farm.command()
def build() -> None:
    """Make the view of this host's driver, unless it exists, and print its path.

    Example: nvct farm build
    """
    settings = settings_in_force()
    options, mode = live_host.own_options(settings), live_host.own_mode(settings)
    # nvct farm build makes a view whatever layout config.toml has.
    inventory = live_host.discover_or_view(settings.replaced(layout="farm"), options, mode)
    warn(inventory.warnings)
    manifest = make(of_host.farm_of(settings), inventory, settings.driver_root)
    for path, reason in manifest.left_out:
        say(f"left out: {path}: {reason}")
    tell(manifest.path)
    say(f"driver {manifest.version}, {len(manifest.entries)} files by {manifest.method}")


@farm.command("list")
@format_option("table")
def list_(*, form: str) -> None:
    """List the views, what keeps them, and what is wrong with them.

    Example: nvct farm list --format json
    """
    settings = settings_in_force()
    statuses = collect.statuses(of_host.farm_of(settings), _needs(settings), strict=False)
    show(form, [_to_dict(status) for status in statuses], map(printable, _lines(statuses)))
    if not statuses and form != "json":
        say(NO_VIEWS)


@farm.command()
@click.option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
def gc(*, dry_run: bool) -> None:
    """Remove the views that nobody needs any more.

    The view of the loaded driver stays, and so does a view that a process has mounted or that a
    plan or a CDI specification names.

    Example: nvct farm gc --dry-run
    """
    settings = settings_in_force()
    removed = collect.collect(of_host.farm_of(settings), _needs(settings), dry_run=dry_run)
    for status in removed:
        tell(status.manifest.path)
    say(f"{count(len(removed), 'view')} {'would be removed' if dry_run else 'removed'}")


@farm.command()
@click.argument("names", nargs=-1)
@format_option("text")
def verify(*, names: tuple[str, ...], form: str) -> None:
    """Compare the content of views with their records; exit with 1 if any differs.

    The first run records a hash of each file; later runs compare with that hash.

    Example: nvct farm verify
    """
    rows: list[dict[str, Any]] = []
    for manifest, problems in collect.verify(of_host.farm_of(settings_in_force()), names):
        state = "not mounted now" if collect.is_absent(manifest) else "unchanged"
        state = "differs" if problems else state
        rows.append({"name": manifest.name, "state": state, "problems": problems})
    texts = (text for r in rows for text in r["problems"] or [f"{r['name']}: {r['state']}"])
    show(form, rows, map(printable, texts))
    if not rows:
        say(NO_VIEWS)
    sys.exit(1 if any(row["problems"] for row in rows) else 0)


def _needs(settings: Config) -> Needs:
    return of_host.needs_in_force(settings, live_host.roots_of(settings), run_dir(os.environ))


def _to_dict(status: Status) -> dict[str, Any]:
    manifest = status.manifest
    return {
        **{
            name: getattr(manifest, name) for name in ("name", "path", "version", "method", "made")
        },
        "files": len(manifest.entries),
        **{k: v for k, v in asdict(status).items() if k != "manifest"},
    }


def _lines(statuses: Sequence[Status]) -> Iterator[str]:
    for status in statuses:
        manifest = status.manifest
        size = f"{status.size / (1 << 20):.0f} MiB"
        keep = status.keep or "nothing needs it"
        yield f"{manifest.path}  {manifest.method}  {size}  {status.state}  ({keep})"
        yield from (f"  {problem}" for problem in status.problems)
