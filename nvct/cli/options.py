# SPDX-License-Identifier: Apache-2.0
"""What commands share: lists of words as options, and messages that --quiet keeps back."""

from __future__ import annotations

import click

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Command: TypeAlias = Callable[..., Any]
    ParamType: TypeAlias = click.ParamType[tuple[str, ...]]
else:
    ParamType = click.ParamType  # not generic before click 8.4


class Words(ParamType):
    """A repeatable option whose values are also split at commas, as the incumbent's."""

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


def flat(values: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the words of a repeated option."""
    return tuple(word for value in values for word in value)


def say(text: str) -> None:
    """Say on stderr what --quiet keeps back."""
    if not click.get_current_context().meta.get("nvct.quiet"):
        click.echo(text, err=True)


def words(*names: str, env: str, text: str) -> Callable[[Command], Command]:
    """Return an option that may be repeated and takes comma-separated words."""
    return click.option(*names, type=Words(), multiple=True, envvar=env, help=text)
