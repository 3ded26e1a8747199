# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk cdi check. Options, call and print, no logic."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle, flat, say, settings_in_force, words
from nvct.errors import HostError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.config.model import Config
    from nvct.host.model import Inventory
    from nvct.spec.drift import Report


@click.command(cls=GoStyle)
@words("--spec-dir", env="NVIDIA_CTK_CDI_SPEC_DIRS",
       text="Folders to look in.  [default: config.toml's]")  # fmt: skip
@format_option("text")
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="Where the driver's files are.  [default: config.toml's, else /]")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
              help="Where dev/ is.  [default: in the driver root, else in /]")  # fmt: skip
@click.option("--config", help="config.toml to take folders and roots from.")
def check(
    *,
    spec_dir: tuple[tuple[str, ...], ...],
    form: str,
    driver_root: str | None,
    dev_root: str | None,
    config: str | None,
) -> None:
    """Compare the CDI specifications in force with this host; exit with 1 if they differ.

    Each cause is one line: another driver, files, device nodes, hooks and GPUs that are gone, new
    or others. --format json has each difference. Specifications of other vendors are checked too,
    and files that engines do not use, since a folder of higher priority has another of that name.

    Example: nvidia-ctk cdi check --format json
    """
    from nvct.cdi import registry
    from nvct.compile import live_host
    from nvct.host import procfs
    from nvct.spec import drift

    settings = settings_in_force(config, driver_root, dev_root)
    found, problem = _look(settings, required=bool(driver_root or dev_root))
    host = drift.HostState(
        live=found,
        loaded=procfs.driver_version(live_host.roots_of(settings)),
        stat_node=live_host.stat_node(settings),
    )
    report = drift.check(registry.scan(flat(spec_dir) or settings.spec_dirs), host)
    if problem and report.gives_driver:
        say(f"warning: {problem}")
    for warning in found.warnings if found else ():
        say(f"warning: {warning}")
    _show(report, form)
    sys.exit(1 if report.drift else 0)


def _look(settings: Config, *, required: bool) -> tuple[Inventory | None, str]:
    """Return the inventory of the host and "", or None and the reason if it has no driver.

    If the driver on disk was replaced, a view of the loaded driver takes its place.

    Raises:
        HostError: the command line names a driver root that has no driver.
    """
    from nvct.compile import farm_plan, live_host
    from nvct.host.discovery_options import DiscoveryOptions

    try:
        return live_host.discover(settings), ""
    except HostError as error:
        if required:
            raise
        view = farm_plan.loaded_view(settings, live_host.roots_of(settings), DiscoveryOptions())
        return view, "; ".join([error.message, *(view.warnings if view else ())])


def _show(report: Report, form: str) -> None:
    from nvct.doctor import causes

    if form == "json":
        found = [{**asdict(drift), "text": drift.text} for drift in report.drift]
        shown = {"specs": report.specs, "devices": report.devices, "drift": found}
        click.echo(json.dumps(shown, indent=2))
        return
    for line in causes.lines(report.drift):
        click.echo(printable(line))
    count = f"{_number(report.specs, 'spec')}, {_number(report.devices, 'device')}"
    if report.drift:
        things = _number(len(report.drift), "difference")
        advice = causes.advice(report.drift, "nvidia-ctk cdi generate")
        say(f"{count}: {things} from the host; {advice}")
    else:
        click.echo(f"{count}: no difference from the host")


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
