# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct doctor, nvct status. Options, call and print, no logic."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from threading import Timer
from typing import Any

import click

from nvct.cli.context import say, settings_in_force
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import agent_and_release, format_option, need_host, show, words
from nvct.cli.refresh import OUTPUT, OUTPUT_ENV
from nvct.cli.runtime import engine
from nvct.cli.runtime.options import state_dir
from nvct.cli.runtime.status import document, environ_of_user
from nvct.cli.screen import COLORS, MARKS, colored, columns, wrapped
from nvct.config.model import Config
from nvct.doctor import bundle, checks, mends
from nvct.doctor.checks import Check
from nvct.doctor.fix import Transaction
from nvct.doctor.image_needs import UNPACK
from nvct.doctor.model import Part, count
from nvct.doctor.node import Node
from nvct.doctor.reasons import Reason
from nvct.errors import NvctError, UsageError, printable
from nvct.host.nvml.session import close_shared

PAGE = "docs/doctor.md"  # Has a section for each check
PATIENCE_S = 4.0
WAITS = "the driver has not answered yet; waiting, for a minute at most"
UNSEEN = "?"  # The mark of a check that could not see everything, and found no fault


@click.command(cls=GoStyle)
@words("--only", text="Names of the checks to run.  [default: all]")
@click.option("--security", is_flag=True, help="Only checks of this host's protection.")
@click.option("--image", metavar="FOLDER",
              help="Also check an unpacked image for what the driver needs.")  # fmt: skip
@click.option("--fix", is_flag=True, help="Mend all faults that nvct can mend, or change nothing.")
@click.option("--undo", is_flag=True, help="Undo the last --fix.")
@click.option(
    "--dry-run", is_flag=True, help="With --fix or --undo: print the plan; change nothing."
)
@click.option("--state-dir", envvar="NVCT_STATE_DIR",
              help="Folder where --fix keeps the former state.  "
              "[default: /var/lib/nvct/doctor; of users: below ~]")  # fmt: skip
@click.option(
    "--bundle", metavar="FILE", help="Write an archive for a bug report, without secrets."
)
@format_option("text")
def doctor(
    *,
    only: tuple[str, ...],
    security: bool,
    image: str | None,
    fix: bool,
    undo: bool,
    dry_run: bool,
    state_dir: str | None,
    bundle: str | None,
    form: str,
) -> None:
    """Find out why containers of this host get no GPU; exit with 1 if something is wrong.

    Each check asks one question about this host. A fault is shown with its evidence and what to
    do; --json adds the reason. Only root sees everything. docs/doctor.md and docs/reasons.md (in
    packages: /usr/share/doc/nvct-base) describe checks and reasons.

    Example: sudo nvct doctor
    """
    need_host("doctor")
    if dry_run and not (fix or undo):
        raise UsageError("--dry-run goes with --fix or --undo", hint="nvct doctor --fix --dry-run")
    if undo and (only or security or image or bundle or form != "text"):
        raise UsageError(
            "--undo takes no options but --dry-run and --state-dir", hint="nvct doctor --undo"
        )
    folder = _unpacked(image)
    node = node_of_host(folder)
    if undo:
        sys.exit(0 if _transaction(node, state_dir).undo(dry_run=dry_run) else 1)
    chosen = _chosen(only, security=security)
    if folder and all(check.name != "image" for check in chosen):
        raise UsageError(
            "--image needs the check image", hint="nvct doctor --only image --image X"
        )
    if fix and not dry_run:
        _transaction(node, state_dir).settle()
    parts = _look(chosen, node)
    failed = False
    if fix:
        changed, failed = _mend(node, parts, state_dir, dry_run=dry_run)
        if changed:
            node = node_of_host(folder)
            parts = _look(chosen, node)
    if bundle:
        _save(bundle, node, parts)
    show(form, _documents(parts), text(parts, is_root=os.geteuid() == 0, width=columns()))
    sys.exit(1 if failed or _count_wrong(parts) else 0)


def _unpacked(image: str | None) -> str:
    """Return the folder of --image, "" without the option."""
    if image is None:
        return ""
    if not os.path.isdir(image):
        raise UsageError(f"--image: no folder {image}", hint=UNPACK)
    return os.path.abspath(image)


def _look(chosen: Sequence[Check], node: Node) -> list[Part]:
    """Run the checks; print a line if they take long, as if NVML hangs."""
    context = click.get_current_context()

    def tell() -> None:
        with context.scope(cleanup=False):  # makes --quiet known to the timer's thread
            say(WAITS)

    waits = Timer(PATIENCE_S, tell)
    waits.daemon = True
    waits.start()
    try:
        return [checks.result(check, node) for check in chosen]
    finally:
        waits.cancel()


def _chosen(names: Sequence[str], *, security: bool) -> Sequence[Check]:
    """Return the checks to run."""
    known = [check.name for check in checks.CHECKS]
    for name in names:
        if name not in known:
            raise UsageError(f"no check has the name {name!r}", hint=f"names: {', '.join(known)}")
    found = checks.named(names) if names else checks.CHECKS
    return [check for check in found if not security or check.name in checks.SECURITY]


def node_of_host(image: str = "") -> Node:
    """Return this host for the checks, which also report a config.toml that cannot be read.

    `image` is the folder of an unpacked image, "" for none.
    """
    trouble = None
    agent, released = agent_and_release()
    try:
        settings = settings_in_force()
    except NvctError as error:
        settings, trouble = Config(), error
    return Node(
        settings=settings,
        env=environ_of_user(os.environ),
        engines=engine.engines(),
        agent=agent,
        trouble=trouble,
        released=released,
        image=image,
    )


def _save(path: str, node: Node, parts: Sequence[Part]) -> None:
    documents: dict[str, Any] = {
        "doctor.json": _documents(parts),
        "engines.json": [document(status) for status in node.statuses],
        "agent.json": node.agent,
    }
    found = (finding.reason for part in parts for finding in part.findings)
    bundle.save(path, node, documents, hangs=Reason.NvmlHung in found)
    say(f"wrote {path}: read it before you send it; `nvct sim replay` can replay it")


def text(parts: Sequence[Part], *, is_root: bool, width: int) -> Iterator[str]:
    """Yield the lines: one for each check, more for its faults, and a summary."""
    name_width = max((len(part.name) for part in parts), default=0)
    for part in parts:
        mark = _mark(part)
        head = f"{mark:<5}{part.name:<{name_width}}  "
        yield from _shown(_lines(part), head, mark, at=0, width=width, hang=2)
    dim = sum(_mark(part) == UNSEEN for part in parts)
    unseen = f", {dim} incomplete" if dim else ""
    wrong = _count_wrong(parts) or "none"
    yield ""
    yield f"{count(len(parts), 'check')}, {wrong} with a fault{unseen}"
    if not is_root:
        yield "Only root sees everything: run it with sudo."


def _shown(
    lines: Iterable[str], head: str, mark: str, *, at: int, width: int, hang: int = 0
) -> Iterator[str]:
    first, *rest = map(printable, lines)
    start, *more = wrapped(head, first, width)
    bold = mark == MARKS["attention"]
    shown = colored(mark, COLORS.get(mark), bold=bold)
    yield start[:at] + shown + start[at + len(mark) :]
    yield from more
    for line in rest:
        yield from wrapped(" " * len(head), line, width, len(head) + hang)


def _mark(part: Part) -> str:
    is_dim = part.health != "attention" and any(
        finding.severity == "unknown" for finding in part.findings
    )
    return UNSEEN if is_dim else MARKS[part.health]


def _lines(part: Part) -> Iterator[str]:
    """Yield a part's lines, and each remedy after the last of the lines that it mends."""
    remedies = {one.evidence: one.to_dict()["remedy"] for one in part.findings if one.is_fault}
    told: list[str] = []
    waiting = ""
    for line in part.lines:
        remedy = remedies.pop(line, "")
        if waiting and waiting != remedy:
            yield f"do: {waiting}"
            told.append(waiting)
        waiting = remedy if remedy not in line else ""
        yield line
    for remedy in dict.fromkeys((waiting, *remedies.values())):
        if remedy and remedy not in told and not any(remedy in line for line in part.lines):
            yield f"do: {remedy}"


def _documents(parts: Sequence[Part]) -> list[dict[str, object]]:
    questions = {check.name: check.question for check in checks.CHECKS}
    return [
        {**part.to_dict(), "question": questions[part.name], "page": f"{PAGE}#{part.name}"}
        for part in parts
    ]


def _count_wrong(parts: Sequence[Part]) -> int:
    return sum(part.health == "attention" for part in parts)


@click.command(cls=GoStyle)
@format_option("text")
def status(*, form: str) -> None:
    """Show the health of this node; exit with 1 if something is wrong.

    Checks the configuration, the driver, the CDI specifications in force, the plans and views that
    containers use, the configuration of the engines, and the systemd units that keep the
    specification up to date.

    Example: sudo nvct status
    """
    need_host("status")
    node = node_of_host()
    parts = [checks.result(check, node) for check in checks.named(checks.STATUS)]
    show(form, [part.to_dict() for part in parts], _status_text(parts, columns()))
    sys.exit(1 if _count_wrong(parts) else 0)


def _status_text(parts: Sequence[Part], width: int) -> Iterator[str]:
    """Yield the lines of a table; `width` is the terminal's, 0 for no limit."""
    for part in parts:
        mark, name = MARKS[part.health], f"{part.name:<8} "
        yield from _shown(part.lines, f"{name}{mark:<5} ", mark, at=len(name), width=width)


def _mend(
    node: Node, parts: Sequence[Part], folder: str | None, *, dry_run: bool
) -> tuple[bool, bool]:
    """Print the plan that mends the faults, and carry it out unless this is a dry run.

    Returns:
        Whether the host has to be checked again, and whether a step failed.
    """
    planned = mends.plan(parts)
    config = click.get_current_context().meta.get("nvct.config")
    host = mends.Host(
        roots=node.roots,
        settings=node.settings,
        output=os.environ.get(OUTPUT_ENV) or OUTPUT,
        options=["--config", config] if config else [],
        say=_say,
    )
    for mend in planned:
        names = ", ".join(reason.name for reason in mend.reasons)
        _say(f"{'would run' if dry_run else 'plan'}: {mend}  ({names})")
        for line in list(mends.lines(mend, host)) or ["changes nothing"]:
            _say(f"  {line}")
    if not planned:
        _say("nothing that nvct can mend")
    if dry_run or not planned:
        return False, False
    close_shared()  # NVML lists only the GPUs that it found when it was loaded
    is_done = _transaction(node, folder).carry_out([mends.step(mend, host) for mend in planned])
    if is_done:
        _say("done: `nvct doctor --undo` undoes it")
    return True, not is_done


def _transaction(node: Node, folder: str | None) -> Transaction:
    return Transaction(state_dir(folder, "doctor"), node.roots, _say)


def _say(text: str) -> None:
    click.echo(text, err=True)
