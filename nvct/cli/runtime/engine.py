# SPDX-License-Identifier: Apache-2.0
"""What the commands that change an engine share: which one is meant, and its transaction."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import click

from nvct.errors import DocumentError, EngineError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvct.engine.change.journal import Journal
    from nvct.engine.change.transaction import Transaction
    from nvct.engine.control.engine_control import EngineControl
    from nvct.engine.control.processes import Process
    from nvct.engine.detected_engine import Engine
    from nvct.engine.model import EngineOptions
    from nvct.errors import NvctError

PROC = "/proc"
RELOAD = click.option(
    "--reload", "way", type=click.Choice(["auto", "restart", "none"]), default="auto",
    show_default=True,
    help="Tell a running engine: by what leaves its containers running, by any means, or not.",
)  # fmt: skip


def transaction(
    options: EngineOptions,
    found: Engine | None,
    journal: Journal,
    *,
    way: str,
    leaving: bool = False,
) -> Transaction:
    """Return what changes an engine's files, has the engine check them and tells it."""
    from nvct.engine import modules
    from nvct.engine.change.transaction import Transaction
    from nvct.engine.model import Files

    control = _control(options, found, way, leaving=leaving)
    return Transaction(modules.of(options.engine), Files(), journal, control)


def engines() -> list[Engine]:
    """Return the engines of this host."""
    from nvct.engine import detect
    from nvct.engine.model import Files

    return detect.engines(Files(), proc=PROC, uid=os.geteuid(), environ=os.environ)


def meant(engine: str, config: str | None) -> Engine | None:
    """Return the engine of this host that a command line means, None where there is none.

    Raises:
        UsageError: several run, and none is named by its file.
        EngineError: it is not to be configured by files; what to do instead is said.
    """
    return choose(engines(), engine, None if config is None else os.path.abspath(config))


def choose(here: Sequence[Engine], engine: str, config: str | None) -> Engine | None:
    """Return the one that is meant of the engines that are here; see `meant`."""
    every = [found for found in here if found.engine == engine and _is_ours(found)]
    every.sort(key=lambda found: found.foreign)  # one that is left anyway is only told
    if config is not None:
        named = [found for found in every if config in (found.config, found.edit)]
        return _allowed(named[0]) if named else None
    free = [found for found in every if not found.leave]
    running = [found for found in free if found.pid]
    if len(running) > 1:
        files = ", ".join(found.edit or found.config for found in running)
        raise UsageError(
            f"{len(running)} of {engine} run here", hint=f"name one by --config: {files}"
        )
    candidates = running or free or every
    return _allowed(candidates[0]) if candidates else None


def fitted(options: EngineOptions, found: Engine, *, drop_in: bool) -> EngineOptions:
    """Return what is wanted for the files that an engine really reads.

    Args:
        options: of the engine, with its usual files.
        found: the engine of this host.
        drop_in: one was named, and stays.
    """
    return replace(
        of_version(options, found),
        config=found.edit or found.config or options.config,
        drop_in=options.drop_in if drop_in or found.drop_in is None else found.drop_in,
    )


def of_version(options: EngineOptions, found: Engine) -> EngineOptions:
    """Return what is wanted, of the engine that really reads it."""
    version = found.numbers or options.engine_version
    return replace(options, engine_version=version, arguments=_arguments(found))


def recorded(
    journal: Journal,
    engine: str | None,
    config: str | None,
    errors: list[NvctError],
    *,
    remove: bool = False,
) -> list[EngineOptions]:
    """Return what the journal says that engines were told, all or those that are meant.

    What is wrong with a page is added to `errors`: the other engines are not to wait for it.
    To `remove` the runtimes of an engine, a damaged page needs only to be its page.

    Raises:
        DocumentError: the journal cannot be read.
    """
    from nvct.engine.change.journal import DamagedJournalError

    found = []
    path = None if config is None else os.path.abspath(config)
    for name in journal.paths():
        if engine and not os.path.basename(name).startswith(f"{engine}-"):
            continue
        try:
            page = journal.load(name)
        except DamagedJournalError as error:
            options = bare(os.path.basename(name).partition("-")[0], config)
            if remove and journal.path(options.engine, options.config) == name:
                found.append(options)
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
            found.append(record.options)
    return found


def reader(options: EngineOptions) -> Engine | None:
    """Return the engine of this host that reads these files, None where there is none."""
    return of_file(engines(), options)


def of_file(here: Sequence[Engine], options: EngineOptions) -> Engine | None:
    """Return the engine that reads these files of those that are here; see `reader`.

    Never one that another user or file system has brought: its program is run, its socket asked.
    """
    for found in here:
        named = options.config in (found.config, found.edit)
        if found.engine == options.engine and named and not found.foreign:
            return found
    return None


def bare(engine: str, config: str | None) -> EngineOptions:
    """Return what an engine is told by default, to take it out again."""
    from nvct.engine import modules, usage
    from nvct.engine.model import EngineOptions

    modules.of(engine)
    handlers = usage.handlers(usage.SHIM_PATH)
    path = os.path.abspath(config or modules.CONFIG[engine])
    return EngineOptions(engine=engine, handlers=handlers, default=usage.NAME, config=path)


def _is_ours(found: Engine) -> bool:
    """Tell whether an engine's paths are the host's: a container's engine has its own."""
    return found.root == "/" or found.platform == "snap"


def _allowed(found: Engine) -> Engine:
    if found.leave:
        for sentence in found.advice:
            click.echo(sentence, err=True)  # longer than an error's one line
        what = f"{found.engine} of {found.platform}" if found.platform else found.engine
        raise EngineError(
            f"{what} is not configured by its file {found.config}",
            hint="do what is said above" if found.advice else "see nvct runtime status",
        )
    return found


def _control(
    options: EngineOptions, found: Engine | None, way: str, *, leaving: bool
) -> EngineControl:
    from nvct.engine import modules
    from nvct.engine.control.engine_control import EngineControl
    from nvct.engine.control.reload import HostReloader

    program = options.executable or (found.binary if found else "")
    program = program or shutil.which(modules.PROGRAM[options.engine]) or ""
    return EngineControl(
        options=options,
        program=program,
        reloader=HostReloader(
            engine=options.engine,
            found=found,
            way=way,
            look=_by_number,
            again=lambda: _running(options),
        ),
        socket=found.socket if found else "",
        leaving=leaving,
    )


def _running(options: EngineOptions) -> Engine | None:
    found = reader(options)
    return found if found and found.pid else None


def _arguments(found: Engine) -> tuple[str, ...]:
    process = _by_number(found.pid) if found.pid else None
    return process.args[1:] if process else ()


def _by_number(pid: int) -> Process | None:
    from nvct.engine.control import processes

    return next((one for one in processes.running(PROC) if one.pid == pid), None)
