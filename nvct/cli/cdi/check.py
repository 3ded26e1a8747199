# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk cdi check. Options, call and print, no logic."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from nvct.cli.options import GoStyle, flat, format_option, say, settings_in_force, tell, words

TYPE_CHECKING = False
if TYPE_CHECKING:
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

    Prints one line per cause: another driver; files, device nodes, hooks or GPUs that are missing,
    new or changed; a file that engines do not use, because a folder of higher priority defines the
    same devices. --format json has each difference. Specifications of any vendor are checked.

    Example: nvidia-ctk cdi check --format json
    """
    from nvct.doctor import specifications

    settings = settings_in_force(config, driver_root, dev_root)
    found, problem = specifications.look(settings, required=bool(driver_root or dev_root))
    report = specifications.compare(settings, found, flat(spec_dir))
    if problem and report.gives_driver:
        say(f"warning: {problem}")
    for warning in found.warnings if found else ():
        say(f"warning: {warning}")
    _show(report, form)
    sys.exit(1 if report.drift else 0)


def _show(report: Report, form: str) -> None:
    from nvct.doctor import causes, specifications
    from nvct.doctor.model import count

    if form == "json":
        found = [
            {**asdict(drift), "text": drift.text, "reason": finding.reason.name}
            for drift, finding in zip(report.drift, specifications.findings(report), strict=True)
        ]
        shown = {"specs": report.specs, "devices": report.devices, "drift": found}
        click.echo(json.dumps(shown, indent=2))
        return
    for line in causes.lines(report.drift):
        tell(line)
    things = f"{count(report.specs, 'spec')}, {count(report.devices, 'device')}"
    if report.drift:
        differences = count(len(report.drift), "difference")
        advice = causes.advice(report.drift, "nvidia-ctk cdi generate")
        say(f"{things}: {differences} from the host; {advice}")
    else:
        tell(f"{things}: no difference from the host")
