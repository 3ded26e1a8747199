# SPDX-License-Identifier: Apache-2.0
"""Prints how a container was created and which GPUs it has, for nvct explain."""

from __future__ import annotations

import json
import os

import click

from nvct.cli import screen
from nvct.cli.explain_text import left_out
from nvct.cli.options import need_host, say, say_if_inside, settings_in_force, tell
from nvct.errors import NvctError, UsageError, printable, shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

HEAD = 11
"""Columns in which a line says what it is about."""
LONGEST = 1000
"""Characters of a text that others chose."""


def explain_container(word: str, form: str) -> None:
    """Print what a container asked for, what was decided about it, and which GPUs it has.

    Raises:
        UsageError: there is none, and nothing was decided about one.
    """
    from nvct.cli.ps import uses_of_host
    from nvct.compile import live_host
    from nvct.doctor.container import decisions, one_container

    need_host("explain")
    settings = settings_in_force()
    around = one_container.Surroundings(
        roots=live_host.roots_of(settings),
        settings=settings,
        env=os.environ,
        log=decisions.look(decisions.folders(os.environ), decisions.Filter()),
    )
    uses, problem = [], ""
    try:
        found = one_container.find(around.roots, word, env=os.environ)
    except UsageError:
        found = one_container.ended(word, around)
        if not found:
            raise
    else:
        try:
            uses = uses_of_host(around.roots)
        except NvctError as error:
            problem = f"cannot be seen: {error.message}"
    for warning in around.log.problems:
        say(f"warning: {warning}")
    told = [{**one_container.told(one, uses, around), "problem": problem} for one in found]
    if not any(one["decisions"] for one in told):
        say_if_inside()
    if form == "json":
        click.echo(json.dumps(told, indent=2))
        return
    show(told)


def show(told: Sequence[Mapping[str, Any]]) -> None:
    """Print what is known about containers."""
    width, before = screen.columns(), ""
    for name, line in (row for one in told for row in rows(one)):
        head = f"  {'' if name == before else name:<{HEAD - 2}}" if name else ""
        before = name
        text = printable(shortened(line, LONGEST))
        tell(*screen.wrapped(head, text, width))


def rows(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines about a container, each with what it is about."""
    runs = f"process {one['pid']}" if one["pid"] else "does not run"
    yield "", f"{one['name']}  (id {str(one['id'])[:12] or '-'}, {runs})"
    if one["creation"] is None:
        yield "decided", "nothing: it is in no container that is seen here"
    else:
        yield from _creation(one["creation"])
    for record in one["decisions"]:
        yield "decided", _decision(record)
    for use in one["uses"]:
        mig = f", MIG device {use['instance']}" if use["instance"] else ""
        opened = f", open in {use['command']} ({use['pid']})" if use["pid"] else ""
        yield "has", f"GPU {use['gpu']}{mig}{opened}"
    if one["pid"] and not one["uses"]:
        none = "no GPU" if os.geteuid() == 0 else "no GPU that this user can see"
        nodes = f"{' '.join(one['nodes'])} in its /dev" if one["nodes"] else ""
        yield "has", nodes or one["problem"] or none


def _creation(creation: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if creation["image"] or creation["engine"]:
        engine = f" ({creation['engine']})" if creation["engine"] else ""
        yield "image", f"{creation['image'] or 'unknown'}{engine}"
    for asked in creation["asked"]:
        by = f"by {asked['by']}" if asked["by"] else "by image or user: no file tells which"
        yield "asked", f"{asked['text']}  ({by})"
    if creation["privileged"]:
        yield "asked", "it has CAP_SYS_ADMIN"
    for rule in creation["policy"]:
        yield "policy", rule
    for text in creation["resolved"]:
        yield "resolved", text
    for text in creation["went in"]:
        yield "went in", text
    for part in creation["left out"]:
        yield "left out", left_out(part)
    if creation["took"]:
        steps = f": {creation['steps']}" if creation["steps"] else ""
        yield "took", f"{creation['took']}{steps}"
    for text in creation["unknown"]:
        yield "unknown", text


def _decision(record: Mapping[str, str]) -> str:
    """Return when a program decided, and why it refused."""
    from nvct.cli.log import text, when

    if record["outcome"] == "refused" or "about" in record:
        return text(record)
    return f"{when(record)} {record['outcome']} by {record['program']}"
