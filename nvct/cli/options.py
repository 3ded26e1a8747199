# SPDX-License-Identifier: Apache-2.0
"""Shared by commands: lists of words as options, and the names of `nvct.cli.context`."""

from __future__ import annotations

import os

import click

from nvct.cli.context import flat, say, settings_in_force, tell
from nvct.cli.gostyle import GoStyle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Command: TypeAlias = Callable[..., Any]
    ParamType: TypeAlias = click.ParamType[tuple[str, ...]]
else:
    ParamType = click.ParamType  # not generic before click 8.4

__all__ = [
    "GoStyle",
    "Words",
    "container_names",
    "drop_in_option",
    "flat",
    "need_host",
    "say",
    "say_if_inside",
    "settings_in_force",
    "tell",
    "words",
]


class Words(ParamType):
    """A repeatable option with values that are also split at commas, as in the incumbent."""

    name = "list"
    envvar_list_splitter = ","

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split one value."""
        del param, ctx
        if isinstance(value, tuple):
            return value
        return tuple(word.strip() for word in str(value).split(",") if word.strip())


def say_if_inside() -> None:
    """Tell on stderr who finds nothing that this is a container, if it is one."""
    from nvct.doctor.host import inside

    note = inside.hint(os.environ)
    if note:
        say(note)


def container_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of containers that a word may become, for a shell's completion."""
    from nvct.doctor.container import one_container

    del ctx, param
    every = set(one_container.names(os.environ).values())
    return sorted(name for name in every if name.startswith(incomplete))


def need_host(command: str) -> None:
    """Refuse a command about the host in a container of nvct's own pods.

    Raises:
        HostError: this is one.
    """
    from nvct.doctor.host import inside

    inside.need_host(os.environ, command)


def words(
    *names: str, env: str | list[str] | None = None, text: str
) -> Callable[[Command], Command]:
    """Return an option that may be repeated and takes comma-separated words."""
    return click.option(*names, type=Words(), multiple=True, envvar=env, help=text)


def drop_in_option(env: str | None = None) -> Callable[[Command], Command]:
    """Return the option that names the file beside an engine's main file."""
    from nvct.engine.usage import SUITS_ENGINE

    return click.option(
        "--drop-in-config", "drop_in", envvar=env, default=SUITS_ENGINE,
        help='The file beside it to write; "" edits the main file.  '
        "[default: what suits the engine]",
    )  # fmt: skip
