# SPDX-License-Identifier: Apache-2.0
"""Command: nvct list. Options, call and print, no logic."""

from __future__ import annotations

import shutil
import sys

import click

from nvct.cli.options import GoStyle, flat, format_option, say, settings_in_force, words
from nvct.host.model import Inventory


@click.command("list", cls=GoStyle)
@format_option("table", "bind")
@click.option("--all", "everything", is_flag=True,
              help="Also what containers do not get, and why.")  # fmt: skip
@words("--capabilities", env="NVCT_LIST_CAPABILITIES",
       text="Only what these need: compute, utility, graphics, video, display, ngx, compat32, "
       "all.  [default: all but compat32]")  # fmt: skip
@click.option("--mode", default="auto", show_default=True,
              help="How to look, as for nvidia-ctk cdi generate.")  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="Where the driver's files are.  [default: config.toml's, else /]")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@click.option("--config", help="config.toml to take the roots from.")
def inventory(
    *,
    form: str,
    everything: bool,
    capabilities: tuple[tuple[str, ...], ...],
    mode: str,
    driver_root: str | None,
    dev_root: str | None,
    config: str | None,
) -> None:
    """Print what containers get from this host, each entry with its reason.

    Format bind is one SRC:DST:OPTIONS a line: ro for a file, rw for a socket, rwm for a device
    node. docker --volume, podman --volume and apptainer --bind take the lines of files and
    sockets, docker --device and podman --device those of nodes. A link becomes its file.

    Format json is described by inventory.schema.json beside nvct/host/listing.py.

    Example: nvct list --capabilities compute,utility --format bind
    """
    from nvct.compile import live_host
    from nvct.host.discovery_options import DiscoveryOptions
    from nvct.spec import capabilities as capability_sets

    settings = settings_in_force(config, driver_root, dev_root)
    needs = capability_sets.parse(flat(capabilities))
    options = DiscoveryOptions(compat32="compat32" in needs)
    discovered = live_host.discover_or_view(
        settings, options, mode.lower(), elsewhere=bool(driver_root or dev_root)
    )
    _print(capability_sets.restrict(discovered, needs), form, everything=everything)


def _print(discovered: Inventory, form: str, *, everything: bool) -> None:
    from nvct.host import listing

    if form == "bind":
        lines, impossible = listing.as_binds(discovered)
        click.echo("".join(f"{line}\n" for line in lines), nl=False)
        for path in impossible:
            say(f"warning: {path!r} cannot be written as SRC:DST:OPTIONS")
    elif form == "json":
        click.echo(listing.as_json(discovered, left_out=everything), nl=False)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        click.echo(listing.as_table(discovered, left_out=everything, width=width), nl=False)
    for warning in discovered.warnings:
        say(f"warning: {warning}")
