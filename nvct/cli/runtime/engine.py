# SPDX-License-Identifier: Apache-2.0
"""Shared by the commands that change an engine: the choice of the engine, its transaction."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace

import click

from nvct.cli.context import say
from nvct.engine import detect, modules, processes
from nvct.engine.engine_control import EngineControl
from nvct.engine.journal import DamagedJournalError, Journal
from nvct.engine.model import Engine, EngineOptions, Files
from nvct.engine.reload import HostReloader
from nvct.engine.transaction import Transaction
from nvct.errors import DocumentError, EngineError, NvctError, UsageError

PROC = "/proc"
RELOAD = click.option(
    "--reload", "reload_mode", type=click.Choice(["auto", "restart", "none"]), default="auto",
    show_default=True,
    help="How to apply the change: auto (no container restarts), restart, none.",
)  # fmt: skip


def transaction(
    options: EngineOptions,
    detected: Engine | None,
    journal: Journal,
    *,
    reload_mode: str,
    removing: bool = False,
) -> Transaction:
    """Return the transaction that changes an engine's files and reloads it."""
    control = _control(options, detected, reload_mode, removing=removing)
    return Transaction(modules.of(options.engine), Files(), journal, control)


def engines() -> list[Engine]:
    """Return the engines of this host."""
    return detect.engines(Files(), proc=PROC, uid=os.geteuid(), environ=os.environ)


def choose(host_engines: Sequence[Engine], engine: str, config: str | None) -> Engine | None:
    """Return the engine of this host that a command line selects, None if there is none.

    UsageError if several engines of this kind run, and there is no --config; EngineError, after
    advice is printed, if the engine's files must not be edited.
    """
    every = [
        each
        for each in host_engines  # the paths of an engine in a container are not the host's
        if each.engine == engine and (each.root == "/" or each.platform == "snap")
    ]
    every.sort(key=lambda each: each.foreign)  # a foreign engine is only reported, never edited
    if config is not None:
        path = os.path.abspath(config)
        matching = [each for each in every if path in (each.config, each.edit)]
        return _allowed(matching[0]) if matching else None
    editable = [each for each in every if not each.leave]
    running = [each for each in editable if each.pid]
    if len(running) > 1:
        files = ", ".join(each.edit or each.config for each in running)
        raise UsageError(
            f"{len(running)} daemons of {engine} run here", hint=f"choose by --config: {files}"
        )
    candidates = running or editable or every
    return _allowed(candidates[0]) if candidates else None


def fitted(options: EngineOptions, detected: Engine, *, drop_in: bool) -> EngineOptions:
    """Return the options with the files that a detected engine reads."""
    return replace(
        of_version(options, detected),
        config=detected.edit or detected.config or options.config,
        drop_in=options.drop_in if drop_in or detected.drop_in is None else detected.drop_in,
    )


def of_version(options: EngineOptions, detected: Engine) -> EngineOptions:
    """Return the options with the version and arguments of a detected engine."""
    version = detected.numbers or options.engine_version
    process = processes.inspect(detected.pid, PROC) if detected.pid else None
    arguments = process.args[1:] if process else ()
    return replace(options, engine_version=version, arguments=arguments)


def recorded(
    journal: Journal,
    engine: str | None,
    config: str | None,
    errors: list[NvctError],
    *,
    remove: bool = False,
) -> list[EngineOptions]:
    """Return the options that the journal has of all engines, or of the selected ones.

    Errors of a page are added to `errors`, so that they do not block the other engines. With
    `remove`, an engine with a damaged page gets its default options instead. DocumentError if the
    journal cannot be read.
    """
    recorded_options = []
    path = None if config is None else os.path.abspath(config)
    for name in journal.paths():
        if engine and not os.path.basename(name).startswith(f"{engine}-"):
            continue
        try:
            page = journal.load(name)
        except DamagedJournalError as error:
            options = bare(os.path.basename(name).partition("-")[0], config)
            if remove and journal.path(options.engine, options.config) == name:
                recorded_options.append(options)
            else:
                errors.append(error)
            continue
        except DocumentError as error:
            errors.append(error)
            continue
        record = page.done or page.pending
        if record is None or engine not in (None, record.options.engine):
            continue
        if path in (None, record.options.config):
            recorded_options.append(record.options)
    return recorded_options


def of_file(host_engines: Sequence[Engine], options: EngineOptions) -> Engine | None:
    """Return the engine among these that reads the files of the options, None if there is none.

    Engines of another user or file system are left out: their program and socket would be used.
    """
    for detected in host_engines:
        reads_config = options.config in (detected.config, detected.edit)
        if detected.engine == options.engine and reads_config and not detected.foreign:
            return detected
    return None


def bare(engine: str, config: str | None) -> EngineOptions:
    """Return an engine's default options, for their removal from its files."""
    modules.of(engine)
    handlers = modules.handlers(modules.SHIM_PATH)
    path = os.path.abspath(config or modules.CONFIG[engine])
    return EngineOptions(engine=engine, handlers=handlers, default=modules.NAME, config=path)


def _allowed(detected: Engine) -> Engine:
    if detected.leave:
        for sentence in detected.advice:
            say(sentence)  # longer than the one line of an error
        engine_name = (
            f"{detected.engine} of {detected.platform}" if detected.platform else detected.engine
        )
        raise EngineError(
            f"{engine_name} is not configured by its file {detected.config}",
            hint="follow the advice above" if detected.advice else "see nvct runtime status",
        )
    return detected


def _control(
    options: EngineOptions, detected: Engine | None, reload_mode: str, *, removing: bool
) -> EngineControl:
    program = options.executable or (detected.binary if detected else "")
    program = program or shutil.which(modules.PROGRAM[options.engine]) or ""
    return EngineControl(
        options=options,
        program=program,
        reloader=HostReloader(
            engine=options.engine,
            detected=detected,
            mode=reload_mode,
            find_process=lambda pid: processes.inspect(pid, PROC),
            find_engine=lambda: of_file(engines(), options),
        ),
        socket=detected.socket if detected else "",
        removing=removing,
    )
