# SPDX-License-Identifier: Apache-2.0
"""Command: nvct runtime explain. Options, call and print, no logic."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click

from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.doctor.docker import Finding

ANSWERS = {True: "yes", False: "no", None: "unknown"}


@click.command(cls=GoStyle)
@format_option("text")
def explain(*, form: str) -> None:
    """Explain why docker run --gpus fails here.

    The message 'could not select device driver "" with capabilities: [[gpu]]' has seven usual
    causes. Each is checked against the dockerd that runs: its PATH, its start, its files, and
    what docker talks to. Run as root it sees all; with sudo it judges the user's own docker.

    The exit status is 1 where a cause is found.

    Example: sudo nvct runtime explain
    """
    from nvct.doctor import docker as causes
    from nvct.engine.docker import host as docker_host
    from nvct.engine.model import Files
    from nvct.host.roots import Roots

    host = docker_host.look(Files(), Roots(), environ_of_user(os.environ))
    findings = causes.why_docker_cannot(host)
    cause = causes.the_cause(findings)
    if form == "json":
        shown = [asdict(finding) for finding in findings]
        first = cause.cause if cause else ""
        click.echo(json.dumps({"cause": first, "findings": shown}, indent=2))
    else:
        click.echo(text(findings, cause), nl=False)
    sys.exit(1 if cause else 0)


def environ_of_user(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment of the user that runs docker: under sudo, with that user's home."""
    user = environ.get("SUDO_USER", "")
    if not user or environ.get("DOCKER_CONFIG"):
        return environ
    import pwd

    try:
        return {**environ, "HOME": pwd.getpwnam(user).pw_dir}
    except KeyError:
        return environ


def text(findings: list[Finding], cause: Finding | None) -> str:
    """Render the findings: the cause, what to do, and what was checked."""
    lines = []
    if cause:
        lines += [f"{cause.command} fails here: {cause.seen}", f"  do: {cause.advice}"]
    else:
        open_ones = [finding for finding in findings if finding.holds is None]
        lines.append("docker run --gpus: nothing is in its way")
        if open_ones:
            lines[0] += " that can be seen"
        lines += [f"  unknown: {f.seen}{_hint(f.advice)}" for f in open_ones]
    lines += ["", "checked:"]
    width = max(len(finding.cause) for finding in findings)
    for finding in findings:
        lines.append(f"  {ANSWERS[finding.holds]:<8}{finding.cause:<{width}}  {finding.seen}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _hint(advice: str) -> str:
    return f" ({advice})" if advice else ""
