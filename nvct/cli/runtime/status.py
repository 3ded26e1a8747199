# SPDX-License-Identifier: Apache-2.0
"""Commands: nvct runtime status and list."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from nvct.cli.formats import format_option
from nvct.cli.options import GoStyle, say
from nvct.cli.runtime import engine as runtime_engine
from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from nvct.engine.control.status import Status
    from nvct.engine.detected_engine import Engine
    from nvct.engine.model import State

FORMAT = format_option("table")
NO_ENGINE = "no engine found on this host: neither Docker nor containerd, CRI-O or Podman"
ANSWERS = {True: "on", False: "off", None: "as its version has it"}


@click.command("list", cls=GoStyle)
@FORMAT
def list_(*, form: str) -> None:
    """List the engines of this host, running or not, and the file that each really reads.

    Example: nvct runtime list --format=json
    """
    found = runtime_engine.engines()
    if form == "json":
        click.echo(json.dumps([_engine(engine) for engine in found], indent=2))
        return
    for line in table(found):
        click.echo(line)
    if not found:
        say(NO_ENGINE)


@click.command(cls=GoStyle)
@FORMAT
def status(*, form: str) -> None:
    """Show what every engine of this host is told by its files, and what it has in force.

    dockerd and CRI-O are asked; containerd is compared with the time of its files; Podman reads
    its files at each run.

    Example: sudo nvct runtime status
    """
    from nvct.engine.control import status as statuses
    from nvct.engine.model import Files

    found = [statuses.of(engine, Files()) for engine in runtime_engine.engines()]
    if form == "json":
        click.echo(json.dumps([document(one) for one in found], indent=2))
        return
    click.echo("\n".join(text(one) for one in found), nl=False)
    if not found:
        say(NO_ENGINE)


def table(found: Sequence[Engine]) -> Iterator[str]:
    """Yield the lines of a table of engines."""
    rows: list[tuple[str, ...]] = [("ENGINE", "VERSION", "RUNS", "UNIT", "CONFIG")]
    for engine in found:
        config = engine.edit or engine.config
        cells = (_name(engine), engine.version, str(engine.pid or ""), engine.unit, config)
        rows.append(tuple(printable(cell) or "-" for cell in cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if found else ():
        padded = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(padded).rstrip()


def text(one: Status) -> str:
    """Return what is known of an engine, as people read it."""
    lines = [_head(one.engine)]
    lines += [f"  {name + ':':<10} {value}" for name, value in _facts(one)]
    return "".join(f"{printable(line)}\n" for line in lines)


def _name(engine: Engine) -> str:
    return f"{engine.engine} ({engine.platform})" if engine.platform else engine.engine


def _head(engine: Engine) -> str:
    runs = f"runs as process {engine.pid}" if engine.pid else "does not run"
    if engine.engine == "podman" and not engine.pid:
        runs = "needs no daemon"
    return " ".join(word for word in (_name(engine), engine.version) if word) + f", {runs}"


def _facts(one: Status) -> Iterator[tuple[str, str]]:
    """Yield what is known of an engine, by a name."""
    engine, state = one.engine, one.state
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
    if one.problem:
        yield "problem", one.problem
    if state:
        yield "files", ", ".join(state.files) or "none: the engine's own defaults"
        names = [
            f"{name} ({state.handlers[name]})" if state.handlers[name] else name
            for name in one.registered
        ]
        yield "runtimes", ", ".join(names) or "none of NVIDIA's"
        yield "default", state.default or "the engine's own"
        yield "CDI", ANSWERS[_cdi(one.engine, state)]
        if state.spec_dirs:
            yield "CDI from", ", ".join(state.spec_dirs)
    yield from _in_force(one)
    for name in one.missing:
        yield "problem", f"the program of the runtime {name} is not there"
    for text in engine.notes:
        yield "note", text
    for text in engine.advice:
        yield "do", text


def _in_force(one: Status) -> Iterator[tuple[str, str]]:
    """Yield what the running engine says of itself, and where its files say something else."""
    told = one.running
    if told and told.state:
        names = [name for name in one.registered if name in told.state.handlers]
        text = f"{', '.join(names) or 'no runtime of NVIDIA'}"
        text += f"; default {told.state.default or 'its own'}"
        if told.state.cdi is not None:
            text += f"; CDI {ANSWERS[told.state.cdi]}"
        if told.devices:
            text += f"; {len(told.devices)} CDI device{'s' if len(told.devices) > 1 else ''}"
        yield "running", f"{text} (by {told.by})"
    elif told and told.problem:
        yield "running", f"{told.problem}; the lines above are by its files"
    for text in one.differences:
        yield "problem", text


def _cdi(engine: Engine, state: State) -> bool | None:
    """Return whether CDI is on, by the engine's version where its files do not say."""
    from nvct.engine.docker import config as docker

    if engine.engine == "docker":
        return docker.cdi_is_on(engine.numbers, said=state.cdi)
    return state.cdi


def _engine(engine: Engine) -> dict[str, Any]:
    return {key: value for key, value in asdict(engine).items() if key != "root"}


def document(one: Status) -> dict[str, Any]:
    """Return what is known of an engine, as programs read it."""
    state = None
    if one.state:
        state = {
            "files": one.state.files,
            "version": one.state.version,
            "runtimes": dict(one.state.handlers),
            "default": one.state.default,
            "cdi": _cdi(one.engine, one.state),
            "specDirs": one.state.spec_dirs,
        }
    return {
        **_engine(one.engine),
        "state": state,
        "problem": one.problem,
        "nvidia": one.registered,
        "nvidiaIsDefault": one.is_default,
        "missingPrograms": one.missing,
        "running": asdict(one.running) if one.running else None,
        "differences": one.differences,
    }
