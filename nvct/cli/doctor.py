# SPDX-License-Identifier: Apache-2.0
"""Command: nvct doctor. Options, call and print, no logic."""

from __future__ import annotations

import json
import os
import sys

import click

from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle, flat, settings_in_force, words
from nvct.errors import HostError, NvctError, UsageError, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from nvct.doctor.checks import Check, Node
    from nvct.doctor.model import Finding, Part

MARKS = {"ok": "ok", "absent": "-", "attention": "LOOK"}


@click.command(cls=GoStyle)
@words("--only", text="Names of checks; all of them if none is named.")
@click.option("--security", is_flag=True, help="Only what protects this host from others.")
@click.option("--fix", is_flag=True, help="Run the commands of nvct that mend what was found.")
@click.option("--dry-run", is_flag=True, help="With --fix: print the commands; change nothing.")
@format_option("text")
def doctor(
    *, only: tuple[tuple[str, ...], ...], security: bool, fix: bool, dry_run: bool, form: str
) -> None:
    """Find out why containers of this host get no GPU; exit with 1 if something is wrong.

    Each check asks one question about this host. What is wrong has a reason of docs/reasons.md,
    what was seen, and what to do. A user other than root does not see everything.

    Example: sudo nvct doctor
    """
    from nvct.doctor import checks

    if dry_run and not fix:
        raise UsageError("--dry-run goes with --fix", hint="nvct doctor --fix --dry-run")
    chosen = _chosen(flat(only), security=security)
    node = _node()
    done = [(check, check.look(node)) for check in chosen]
    if fix and _mend([part for _, part in done], dry_run=dry_run):
        from nvct.host.nvml import shared

        shared.close()  # NVML lists the GPUs that it found when it was loaded
        node = _node()
        done = [(check, check.look(node)) for check in chosen]
    if form == "json":
        click.echo(json.dumps([_to_dict(check, part) for check, part in done], indent=2))
    else:
        click.echo("\n".join(text(done, is_root=checks.sees_everything())))
    sys.exit(1 if any(part.health == "attention" for _, part in done) else 0)


def _chosen(names: Sequence[str], *, security: bool) -> Sequence[Check]:
    """Return the checks to run.

    Raises:
        UsageError: a name is unknown.
    """
    from nvct.doctor import checks

    known = [check.name for check in checks.CHECKS]
    for name in names:
        if name not in known:
            raise UsageError(f"no check has the name {name!r}", hint=f"names: {', '.join(known)}")
    found = checks.named(names) if names else checks.CHECKS
    return [check for check in found if check.is_security or not security]


def _node() -> Node:
    from nvct.cli.runtime import engine
    from nvct.cli.runtime.explain import environ_of_user
    from nvct.config.model import Config
    from nvct.doctor.checks import Node

    trouble = None
    try:
        settings = settings_in_force()
    except NvctError as error:
        settings, trouble = Config(), error
    return Node(
        settings=settings,
        env=environ_of_user(os.environ),
        engines=engine.engines(),
        agent=_agent(),
        trouble=trouble,
    )


def _agent() -> Mapping[str, Any] | None:
    """Return /status of this node's agent; None if there is no agent, or it may not be asked."""
    from nvct.cli.agent import status_of_agent

    try:
        document: Mapping[str, Any] = json.loads(status_of_agent())
    except (HostError, ImportError, ValueError):
        return None
    return document


def _mend(parts: Sequence[Part], *, dry_run: bool) -> bool:
    """Run the commands that mend what is wrong; return whether one was run."""
    from nvct.doctor import mends

    planned = mends.plan(parts)
    config = click.get_current_context().meta.get("nvct.config")
    for mend in planned:
        names = ", ".join(reason.name for reason in mend.reasons)
        click.echo(f"{'would run' if dry_run else 'running'}: {mend}  ({names})", err=True)
        if dry_run:
            continue
        status = mends.carry_out(mend, ["--config", config] if config else [])
        if status:
            click.echo(f"it ended with exit status {status}", err=True)
    if not planned:
        click.echo("nothing that a command of nvct mends", err=True)
    return bool(planned) and not dry_run


def text(done: Sequence[tuple[Check, Part]], *, is_root: bool) -> Iterator[str]:
    """Yield the lines: one for each check, more for what is wrong, and the sum."""
    from nvct.doctor.model import count

    width = max((len(check.name) for check, _ in done), default=0)
    for check, part in done:
        lines = [printable(line) for line in part.lines]
        yield f"{MARKS[part.health]:<5}{check.name:<{width}}  {lines[0]}".rstrip()
        indent = " " * (5 + width + 2)
        yield from (f"{indent}{line}" for line in lines[1:])
        yield from (f"{indent}do: {printable(line)}" for line in _remedies(part.findings))
    wrong = sum(part.health == "attention" for _, part in done)
    yield ""
    yield f"{count(len(done), 'check')}, {wrong or 'none'} with something to mend"
    if not is_root:
        yield "Only root sees everything: run it with sudo."


def _remedies(findings: Sequence[Finding]) -> list[str]:
    """Return what to do about the faults among some findings, each sentence once."""
    found = (finding.to_dict()["remedy"] for finding in findings if finding.is_fault)
    return [remedy for remedy in dict.fromkeys(found) if remedy]


def _to_dict(check: Check, part: Part) -> dict[str, object]:
    return {**part.to_dict(), "name": check.name, "question": check.question}
