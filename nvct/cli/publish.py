# SPDX-License-Identifier: Apache-2.0
"""Command: nvct publish, which keeps the spec that engines read up to date."""

from __future__ import annotations

import time

import click

from nvct.cli.options import GoStyle, say, settings_in_force

OUTPUT = "/var/run/cdi/nvidia.yaml"
OUTPUT_ENV = "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH"
TRIES, PAUSE_S = 20, 1.0  # discovery is repeated if the driver changes during it


@click.command(cls=GoStyle)
@click.option("--output", envvar=OUTPUT_ENV, default=OUTPUT,
              show_default=True, help="The specification.")  # fmt: skip
@click.option("--withdraw", is_flag=True, help="Remove it, as when nvct is uninstalled.")
@click.option("--staged", hidden=True, help="Folder to write to; all else is as for --output.")
@click.pass_context
def publish(ctx: click.Context, *, output: str, withdraw: bool, staged: str | None) -> None:
    """Write the CDI specification of this host where engines read it, or remove it.

    nvidia-cdi-refresh.service runs this command after an installation and when the driver or a
    GPU appears or disappears. Without a driver, an older specification is removed. The variables
    of nvidia-ctk cdi generate apply. A file with the same content is not written again; a file
    that describes no NVIDIA devices of this host is never changed.

    Example: nvct publish --output /etc/cdi/nvidia.yaml
    """
    from nvct.compile import published_spec
    from nvct.container.plan import fingerprints
    from nvct.errors import HostError

    output = published_spec.output_path(output)
    if withdraw:
        removed = published_spec.withdraw(output)
        say(f"removed {output}" if removed else f"{output} does not exist")
        return
    settings = settings_in_force()
    for _ in range(TRIES):
        watched = published_spec.watched_fingerprints(settings)
        try:
            _publish(ctx, output, staged)
        except HostError:  # an installation in progress may still add the file
            if fingerprints.broken(watched) is None:
                raise
        if fingerprints.broken(watched) is None:
            return
        time.sleep(PAUSE_S)


def _publish(ctx: click.Context, output: str, staged: str | None) -> None:
    from nvct.cli.cdi.generate_command import generate
    from nvct.compile import published_spec
    from nvct.errors import DriverNotFoundError

    published_spec.check_replaceable(output)
    argv = ["--output", output, *(["--staged", staged] if staged else [])]
    try:
        generate.invoke(generate.make_context("generate", argv, parent=ctx))
    except DriverNotFoundError as error:
        if staged:
            say(f"{error}: no specification")
            return
        removed = published_spec.withdraw(output)
        say(f"{error}: {f'removed {output}' if removed else 'nothing to publish'}")
