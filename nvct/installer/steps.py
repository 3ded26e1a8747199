# SPDX-License-Identifier: Apache-2.0
"""The steps of `nvct install`, and what it undoes at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nvct.errors import NvctError
from nvct.installer import (
    engine,
    instance,
    management,
    programs,
    publication,
    refresh_units,
    settings,
)
from nvct.installer.engine import Setup
from nvct.installer.request import LOW_LEVEL, Request
from nvct.kernel.calls import KERNEL

Say: TypeAlias = Callable[[str], None]
Show: TypeAlias = Callable[[str], None]


def run(request: Request, say: Say, show: Show, *, daemon: bool) -> None:
    """Install and configure the engine; a daemon also waits for a signal and undoes the latter.

    An earlier signal ends the installation and restores the engine, too.

    Args:
        request: a checked one.
        say: prints a sentence about a step.
        show: prints the installed configuration.
        daemon: wait for a signal; else exit, and leave the engine configured.

    Raises:
        NvctError: a step failed; the engine has its former configuration.
    """
    with instance.Instance(request.pid_file):
        engine_setup: Setup | None = None
        try:
            configures = request.engine and not request.leave_engine
            engine_setup = engine.setup(request) if configures else None
            install(request, engine_setup, say, show)
            if engine_setup:
                engine.configure(request, engine_setup, say)
            if request.publish:
                publication.publish(request, say)
                refresh_units.start(request, say)
            if not daemon:
                return
            say("waiting for a signal")
            instance.wait()
        except instance.Stopped:
            say("told to end")
        if request.publish and daemon:
            refresh_units.stop(request, say)
            publication.withdraw(request, say)
        if engine_setup and daemon:
            engine.undo(request, engine_setup, say)


def install(request: Request, engine_setup: Setup | None, say: Say, show: Show) -> None:
    """Install the programs, their configuration, and the parts for management containers.

    Raises:
        NvctError: a step failed, and errors are not ignored.
    """
    runtimes = request.runtimes
    if not runtimes:
        runtimes = engine.find_low_level(engine_setup) if engine_setup else LOW_LEVEL

    def copy() -> None:
        installed = programs.install(request, runtimes)
        state = "installed" if installed.changed else "is installed already"
        say(f"{request.toolkit}: {state}, from {request.source}")

    def configure() -> None:
        text = settings.text(request, runtimes)
        settings.write(request, text)
        show(text)

    def nodes() -> None:
        if request.control_nodes:
            for sentence in management.make_control_nodes(management.roots_of(request), KERNEL):
                say(sentence)

    def spec() -> None:
        if request.cdi_spec:
            say(f"wrote {management.make_spec(request, management.roots_of(request))}")

    for step in (copy, configure, nodes, spec):
        try:
            step()
        except NvctError as error:
            if not request.ignore_errors:
                raise
            say(f"warning: ignored: {engine.errors_of(error)}")
