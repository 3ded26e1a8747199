# SPDX-License-Identifier: Apache-2.0
"""Options that commands share, such as lists of words and --format; reports of several errors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from nvct.cli.context import say
from nvct.cli.gostyle import Adds, Command
from nvct.errors import HostError, NvctError, line

JSON = "nvct.json"


class Words(click.types.StringParamType):
    """A list of words; its environment variable separates them by commas, too."""

    name = "list"
    envvar_list_splitter = ","


def say_if_inside() -> None:
    """Print to stderr that this is a container, if it is one: it explains an empty result."""
    from nvct.doctor import inside

    note = inside.hint(os.environ)
    if note:
        say(note)


def container_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of containers that begin with a word, for a shell's completion."""
    from nvct.config.model import Config
    from nvct.doctor import one_container
    from nvct.doctor.node import Node

    del ctx, param
    every = set(one_container.names(Node(settings=Config(), env=os.environ)).values())
    return sorted(name for name in every if name.startswith(incomplete))


def need_host(command: str) -> None:
    """Raise HostError if a command about the host runs in a container of nvct's own pods."""
    from nvct.doctor import inside

    inside.need_host(os.environ, command)


def agent_and_release() -> tuple[Mapping[str, Any] | None, str]:
    """Return /status of this node's agent, and why the driver is being replaced.

    The status is None if there is no agent, or this user may not ask it; the reason is "" if the
    driver is not being replaced.
    """
    from nvct.doctor import agent_status

    try:
        from nvct.agent.core import instance

        if not os.path.isdir(instance.FOLDER):  # as on most hosts
            return None, ""
        from nvct.agent.nvml import release
    except ImportError:  # the agent's dependencies are not installed
        return None, ""
    try:
        document = instance.status()
    except HostError:
        return None, release.of_file(instance.FOLDER, time.monotonic())
    return document, agent_status.released(document)


def driver_release() -> str:
    """Return why the driver is being replaced, "" if it is not."""
    return agent_and_release()[1]


def all_of(*options: Adds) -> Adds:
    """Return a decorator that adds options, which --help lists in this order."""

    def add_all(function: Command) -> Command:
        for add in reversed(options):
            function = add(function)
        return function

    return add_all


driver_roots = all_of(
    click.option("--driver-root", envvar="NVIDIA_CTK_DRIVER_ROOT",
                 help="Where the driver's files are.  [default: config.toml's, else /]"),
    click.option("--dev-root", envvar="NVIDIA_CTK_DEV_ROOT",
                 help="Where dev/ is.  [default: in the driver root, else in /]"),
)  # fmt: skip


def words(
    *names: str, env: str | list[str] | None = None, default: Sequence[str] = (), text: str
) -> Adds:
    """Return an option that may be repeated and takes comma-separated words, as the incumbent's.

    The command receives a tuple of the words.
    """
    return click.option(
        *names, type=Words(), multiple=True, envvar=env, default=default, help=text,
        callback=_split,
    )  # fmt: skip


def _split(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    del ctx, param
    words = (word.strip() for value in values for word in value.split(","))
    return tuple(filter(None, words))


def drop_in_option(env: str | None = None) -> Adds:
    """Return the option that names the file beside an engine's main file."""
    from nvct.engine.modules import SUITS_ENGINE

    return click.option(
        "--drop-in-config", "drop_in", envvar=env, default=SUITS_ENGINE,
        help='The drop-in file to write; "" edits the main file.  '
        "[default: what suits the engine]",
    )  # fmt: skip


def show(form: str, document: object, lines: Iterable[str]) -> None:
    """Print a document as JSON, or its lines, which must be `printable` already."""
    for text in [json.dumps(document, indent=2)] if form == "json" else lines:
        click.echo(text)


def raise_first(errors: Sequence[NvctError]) -> None:
    """Print each error except the first one, and raise that one."""
    for error in errors[1:]:
        click.echo(line("nvct", error), err=True)
    if errors:
        raise errors[0]


def format_option(*names: str, aliases: tuple[str, ...] = ()) -> Adds:
    """Return a decorator that adds --format, with the first name as default, and --json.

    The command receives the name of the format as its parameter `form`; aliases are former names
    of --format.
    """
    choices = (*names, "json")

    def add(function: Command) -> Command:
        function = click.option(
            "--json", is_flag=True, is_eager=True, expose_value=False, callback=_keep,
            help="Short for --format=json.",
        )(function)  # fmt: skip
        return click.option(
            "--format", *aliases, "form", type=click.Choice(choices), default=choices[0],
            show_default=True, callback=_choose, help="Format of the output.",
        )(function)  # fmt: skip

    return add


def _keep(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    ctx.meta[JSON] = value


def _choose(ctx: click.Context, param: click.Parameter, value: str) -> str:
    del param
    return "json" if ctx.meta.get(JSON) else value
