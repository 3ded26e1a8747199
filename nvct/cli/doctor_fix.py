# SPDX-License-Identifier: Apache-2.0
"""What `nvct doctor` does with --fix and --undo."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from nvct.cli.refresh import OUTPUT, OUTPUT_ENV
from nvct.cli.runtime.options import state_dir
from nvct.doctor import mends
from nvct.doctor.checks import Node
from nvct.doctor.fix import Transaction
from nvct.doctor.model import Part
from nvct.host.nvml.session import close_shared


def settle(node: Node, folder: str | None) -> None:
    """Take back what a killed --fix or --undo left.

    Raises:
        NvctError: the journal cannot be used.
    """
    _transaction(node, folder).settle()


def fix(
    node: Node, parts: Sequence[Part], folder: str | None, *, dry_run: bool
) -> tuple[bool, bool]:
    """Print the plan that mends what is wrong, and carry it out.

    Returns:
        Whether the host has to be checked again, and whether a step failed.
    """
    planned = mends.plan(parts)
    host = _host(node)
    for mend in planned:
        names = ", ".join(reason.name for reason in mend.reasons)
        _say(f"{'would run' if dry_run else 'plan'}: {mend}  ({names})")
        for line in list(mends.lines(mend, host)) or ["changes nothing"]:
            _say(f"  {line}")
    if not planned:
        _say("nothing that a command of nvct mends")
    if dry_run or not planned:
        return False, False
    close_shared()  # NVML lists the GPUs that it found when it was loaded
    is_done = _transaction(node, folder).carry_out([mends.step(mend, host) for mend in planned])
    if is_done:
        _say("done: `nvct doctor --undo` takes it back")
    return True, not is_done


def undo(node: Node, folder: str | None, *, dry_run: bool) -> bool:
    """Take back the last --fix; return whether all of it is taken back.

    Raises:
        NvctError: the journal cannot be used.
    """
    return _transaction(node, folder).undo(dry_run=dry_run)


def _transaction(node: Node, folder: str | None) -> Transaction:
    return Transaction(state_dir(folder, "doctor"), node.roots, _say)


def _host(node: Node) -> mends.Host:
    config = click.get_current_context().meta.get("nvct.config")
    return mends.Host(
        roots=node.roots,
        settings=node.settings,
        output=os.environ.get(OUTPUT_ENV) or OUTPUT,
        options=["--config", config] if config else [],
        say=_say,
    )


def _say(text: str) -> None:
    click.echo(text, err=True)
