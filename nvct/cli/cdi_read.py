# SPDX-License-Identifier: Apache-2.0
"""Commands: nvidia-ctk cdi list, validate. Options and call, no logic."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from nvct import paths
from nvct.cli.options import Words, flat, say
from nvct.errors import NvctError, line


@click.command("list")
@click.option("--spec-dir", type=Words(), multiple=True, envvar="NVIDIA_CTK_CDI_SPEC_DIRS",
              help="Folders to look in.  [default: /etc/cdi,/var/run/cdi]")  # fmt: skip
def list_devices(spec_dir: tuple[tuple[str, ...], ...]) -> None:
    """Print the name of every CDI device, one a line.

    Example: nvidia-ctk cdi list
    """
    from nvct.cdi import registry

    found = registry.scan(flat(spec_dir) or paths.CDI_SPEC_DIRS)
    for name in sorted(found.devices):
        click.echo(name)
    for error in found.errors.values():
        say(line("warning", error))
    for name, files in sorted(found.conflicts.items()):
        say(f"warning: {name} is defined by {' and '.join(files)}")
    say(f"found {len(found.devices)} CDI devices")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), required=True)
def validate(files: tuple[Path, ...]) -> None:
    """Check CDI specification files; exit with 1 if one is not right.

    Example: nvidia-ctk cdi validate /etc/cdi/*.yaml
    """
    from nvct.cdi import load, schema  # jsonschema alone takes longer than --help may

    bad = 0
    for path in files:
        try:
            spec = load.load_file(str(path))
            schema.check(spec, source=str(path))
        except NvctError as error:
            click.echo(line("invalid", error))
            bad += 1
        else:
            click.echo(f"valid: {path} ({spec['kind']}, {len(spec['devices'])} devices)")
    sys.exit(1 if bad else 0)
