# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk hook, for specs that name nvidia-ctk as their hook program."""

from __future__ import annotations

import sys

import click

from nvct.container.cdi_hook.main import main


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def hook(args: tuple[str, ...]) -> None:
    """Run a CDI hook: what nvidia-cdi-hook does, with its options."""
    sys.exit(main(list(args)))
