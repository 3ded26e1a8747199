# SPDX-License-Identifier: Apache-2.0
"""Command: nvidia-ctk cdi diff. Options and call, no logic."""

from __future__ import annotations

import sys

import click

from nvct.cdi.types import Spec
from nvct.cli.options import GoStyle, say, settings_in_force, tell
from nvct.errors import UsageError

LIVE = "live"
STDIN = "-"


@click.command(cls=GoStyle)
@click.argument("old")
@click.argument("new")
@click.option("--mode", envvar="NVIDIA_CTK_CDI_GENERATE_MODE", default="auto",
              help="For live: how to look, as for cdi generate.  [default: auto]")  # fmt: skip
@click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
              help="For live: where the driver's files are.")  # fmt: skip
@click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT", help="For live: where dev/ is.")
def diff(old: str, new: str, mode: str, driver_root: str | None, dev_root: str | None) -> None:
    """Show by device what two CDI specifications do differently; exit with 1 if they do.

    One of them may be the word live: the specification that this host would get now, with the
    names, hook program and hooks of the other one. A - reads a specification from stdin.

    Example: nvidia-ctk cdi diff /var/run/cdi/nvidia.yaml live
    """
    from nvct.cdi.check import compare
    from nvct.cdi.read import load

    if old == new and old in (LIVE, STDIN):
        raise UsageError(f"{old} is compared with itself", hint="name a file")
    specs = {
        word: load.loads(sys.stdin.buffer.read(), source="stdin")
        if word == STDIN
        else load.load_file(word)
        for word in (old, new)
        if word != LIVE
    }
    if LIVE in (old, new):
        template = specs[new if old == LIVE else old]
        specs[LIVE] = _live(template, mode, driver_root, dev_root)
    differences = compare.differences(specs[old], specs[new])
    for where, lines in differences:
        tell(where)
        for text in lines:
            tell(f"  {text}")
    if not differences:
        say(f"no difference between {old} and {new}")
    sys.exit(1 if differences else 0)


def _live(template: Spec, mode: str, driver_root: str | None, dev_root: str | None) -> Spec:
    """Return the spec of this host, with the names, hook program and hooks of another spec."""
    from nvct.cdi.check import compare
    from nvct.cdi.make import generate
    from nvct.compile import live_host

    settings = settings_in_force(None, driver_root, dev_root)
    inventory = live_host.discover(settings, mode=mode.lower())
    for warning in inventory.warnings:
        say(f"warning: {warning}")
    return generate.generate(
        inventory, compare.options_like(template, hook_path=live_host.hook_path(settings))
    )
