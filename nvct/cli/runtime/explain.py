# SPDX-License-Identifier: Apache-2.0
"""Command: nvct runtime explain. Options, call and print, no logic."""

from __future__ import annotations

import json
import os
import sys

import click

from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nvct.doctor.model import Finding

ANSWERS = {"ok": "no", "unknown": "unknown", "note": "no", "warning": "yes", "error": "yes"}
HOLDS = {"yes": True, "no": False, "unknown": None}


@click.command(cls=GoStyle)
@format_option("text")
def explain(*, form: str) -> None:
    """Explain why docker run --gpus fails here.

    The message 'could not select device driver "" with capabilities: [[gpu]]' has seven usual
    causes. Each is checked against the running dockerd: its PATH, its start, its files, and the
    daemon that docker talks to. Only root sees all of that; under sudo, the docker of the calling
    user is checked.

    The exit status is 1 if a cause is found.

    Example: sudo nvct runtime explain
    """
    from nvct.doctor import docker
    from nvct.engine import docker_host
    from nvct.engine.model import Files
    from nvct.host.roots import Roots

    host = docker_host.look(Files(), Roots(), environ_of_user(os.environ))
    findings = docker.why_docker_cannot(host)
    cause = docker.the_cause(findings)
    if form == "json":
        shown = [_to_dict(finding) for finding in findings]
        first = docker.CAUSES[cause.reason] if cause else ""
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
    from nvct.doctor.docker import CAUSES, command_of

    lines = []
    if cause:
        lines += [f"{command_of(cause)} fails here: {cause.evidence}", f"  do: {cause.remedy}"]
    else:
        open_ones = [finding for finding in findings if finding.severity == "unknown"]
        lines.append("docker run --gpus: nothing is in its way")
        if open_ones:
            lines[0] += " that can be seen"
        lines += [f"  unknown: {one.evidence}{_hint(one.remedy)}" for one in open_ones]
    lines += ["", "checked:"]
    width = max(len(CAUSES[finding.reason]) for finding in findings)
    for finding in findings:
        name, answer = CAUSES[finding.reason], ANSWERS[finding.severity]
        lines.append(f"  {answer:<8}{name:<{width}}  {finding.evidence}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _to_dict(finding: Finding) -> dict[str, str | bool | None]:
    from nvct.doctor.docker import CAUSES, command_of

    return {
        "cause": CAUSES[finding.reason],
        "holds": HOLDS[ANSWERS[finding.severity]],
        "seen": finding.evidence,
        "advice": finding.remedy,
        "command": command_of(finding),
        "reason": finding.reason.name,
    }


def _hint(remedy: str) -> str:
    return f" ({remedy})" if remedy else ""
