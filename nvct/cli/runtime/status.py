# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct runtime status, list and explain."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from nvct.cli import screen
from nvct.cli.context import say
from nvct.cli.gostyle import GoStyle
from nvct.cli.options import format_option, show
from nvct.cli.runtime import engine as runtime_engine
from nvct.doctor import docker
from nvct.doctor.docker import CAUSES, command_of
from nvct.doctor.model import Finding
from nvct.engine import docker_host
from nvct.engine import status as statuses
from nvct.engine.model import Engine, Files
from nvct.engine.status import Status
from nvct.errors import printable
from nvct.host.roots import Roots

FORMAT = format_option("table")
NO_ENGINE = "no engine found on this host: neither Docker nor containerd, CRI-O or Podman"
ANSWERS = {True: "on", False: "off", None: "its version's default"}
VERDICTS = {"ok": "no", "unknown": "unknown", "note": "no", "warning": "yes", "error": "yes"}
NAMES = {"handlers": "runtimes", "spec_dirs": "specDirs"}  # of a State, in JSON
HOLDS = {"yes": True, "no": False, "unknown": None}


@click.command("list", cls=GoStyle)
@FORMAT
def list_(*, form: str) -> None:
    """List the engines of this host, running or not, and the file that each one reads.

    Example: nvct runtime list --format=json
    """
    engines = runtime_engine.engines()
    show(form, [_engine(engine) for engine in engines], table(engines))
    if not engines and form != "json":
        say(NO_ENGINE)


@click.command(cls=GoStyle)
@FORMAT
def status(*, form: str) -> None:
    """Show the configuration of every engine of this host: in its files, and in force.

    dockerd and CRI-O are asked; for containerd, the times of its files are compared with its
    start; Podman reads its files at each run.

    Example: sudo nvct runtime status
    """
    every = [statuses.of(engine, Files()) for engine in runtime_engine.engines()]
    show(form, [document(each) for each in every], "\n".join(map(text, every)).splitlines())
    if not every and form != "json":
        say(NO_ENGINE)


def table(engines: Sequence[Engine]) -> Iterator[str]:
    """Yield the lines of a table of engines."""
    rows: list[tuple[str, ...]] = [("ENGINE", "VERSION", "RUNS", "UNIT", "CONFIG")]
    for engine in engines:
        config = engine.edit or engine.config
        cells = (_name(engine), engine.version, str(engine.pid or ""), engine.unit, config)
        rows.append(tuple(cell or "-" for cell in cells))
    yield from screen.table(rows, screen.columns()) if engines else ()


def text(engine_status: Status) -> str:
    """Return the status of an engine as text."""
    lines = [_head(engine_status.engine)]
    lines += [f"  {name + ':':<10} {value}" for name, value in _facts(engine_status)]
    return "".join(f"{printable(line)}\n" for line in lines)


def _name(engine: Engine) -> str:
    return f"{engine.engine} ({engine.platform})" if engine.platform else engine.engine


def _head(engine: Engine) -> str:
    runs = f"runs as process {engine.pid}" if engine.pid else "does not run"
    if engine.engine == "podman" and not engine.pid:
        runs = "needs no daemon"
    return " ".join(word for word in (_name(engine), engine.version) if word) + f", {runs}"


def _facts(engine_status: Status) -> Iterator[tuple[str, str]]:
    engine, state = engine_status.engine, engine_status.state
    yield from (
        (name, value)
        for name, value in (
            ("program", engine.binary),
            ("unit", engine.unit),
            ("socket", engine.socket),
            ("config", engine.config),
            ("edited", engine.edit),
        )
        if value
    )
    if engine_status.problem:
        yield "problem", engine_status.problem
    if state:
        yield "files", ", ".join(state.files) or "none: the engine's own defaults"
        names = [
            f"{name} ({state.handlers[name]})" if state.handlers[name] else name
            for name in engine_status.registered
        ]
        yield "runtimes", ", ".join(names) or "none of NVIDIA's"
        yield "default", state.default or "the engine's own"
        yield "CDI", ANSWERS[state.cdi]
        if state.spec_dirs:
            yield "CDI from", ", ".join(state.spec_dirs)
    yield from _in_force(engine_status)
    for text in engine_status.missing_programs():
        yield "problem", text
    for fault in engine_status.faults:
        yield "problem", fault.text
    for text in engine.notes:
        yield "note", text
    for text in engine.advice:
        yield "do", text


def _in_force(engine_status: Status) -> Iterator[tuple[str, str]]:
    """Yield the settings in force in the running engine, and differences from its files."""
    running = engine_status.running
    if running and running.state:
        names = [name for name in engine_status.registered if name in running.state.handlers]
        text = f"{', '.join(names) or 'no runtime of NVIDIA'}"
        text += f"; default {running.state.default or 'its own'}"
        if running.state.cdi is not None:
            text += f"; CDI {ANSWERS[running.state.cdi]}"
        if running.devices:
            text += f"; {len(running.devices)} CDI device{'s' if len(running.devices) > 1 else ''}"
        yield "running", f"{text} (by {running.by})"
    elif running and running.problem:
        yield "running", f"{running.problem}; the lines above are from its files"
    for text in engine_status.differences:
        yield "problem", text


def _engine(engine: Engine) -> dict[str, Any]:
    return {key: value for key, value in asdict(engine).items() if key not in ("root", "path")}


def document(engine_status: Status) -> dict[str, Any]:
    """Return the status of an engine as a JSON document."""
    state = asdict(engine_status.state) if engine_status.state else {}
    return {
        **_engine(engine_status.engine),
        "state": {NAMES.get(name, name): value for name, value in state.items()} or None,
        "problem": engine_status.problem,
        "nvidia": engine_status.registered,
        "nvidiaIsDefault": engine_status.is_default,
        "missingPrograms": engine_status.missing,
        "running": asdict(engine_status.running) if engine_status.running else None,
        "differences": engine_status.differences,
    }


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
    host = docker_host.look(Files(), Roots(), environ_of_user(os.environ))
    findings = docker.why_docker_cannot(host)
    cause = docker.the_cause(findings)
    first = docker.CAUSES[cause.reason] if cause else ""
    shown = {"cause": first, "findings": [_to_dict(finding) for finding in findings]}
    show(form, shown, causes(findings, cause).splitlines())
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


def causes(findings: list[Finding], cause: Finding | None) -> str:
    """Render the findings: the cause, what to do, and what was checked."""
    lines = []
    if cause:
        lines += [f"{command_of(cause)} fails here: {cause.evidence}", f"  do: {cause.remedy}"]
    else:
        open_ones = [finding for finding in findings if finding.severity == "unknown"]
        lines.append("docker run --gpus: no cause of a failure found")
        if open_ones:
            lines[0] += ", but not all could be checked"
        for one in open_ones:
            hint = f" ({one.remedy})" if one.remedy else ""
            lines.append(f"  unknown: {one.evidence}{hint}")
    lines += ["", "checked:"]
    width = max(len(CAUSES[finding.reason]) for finding in findings)
    for finding in findings:
        name, answer = CAUSES[finding.reason], VERDICTS[finding.severity]
        lines.append(f"  {answer:<8}{name:<{width}}  {finding.evidence}")
    return "".join(f"{printable(line)}\n" for line in lines)


def _to_dict(finding: Finding) -> dict[str, str | bool | None]:
    return {
        "cause": CAUSES[finding.reason],
        "holds": HOLDS[VERDICTS[finding.severity]],
        "seen": finding.evidence,
        "advice": finding.remedy,
        "command": command_of(finding),
        "reason": finding.reason.name,
    }
