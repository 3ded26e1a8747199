# SPDX-License-Identifier: Apache-2.0
"""What commands share: lists of words as options, and messages that --quiet keeps back."""

from __future__ import annotations

import os

import click

from nvct.cli.gostyle import GoStyle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from nvct.config.model import Config

    Command: TypeAlias = Callable[..., Any]
    ParamType: TypeAlias = click.ParamType[tuple[str, ...]]
else:
    ParamType = click.ParamType  # not generic before click 8.4

__all__ = ["GoStyle", "Words", "drop_in_option", "flat", "say", "settings_in_force", "words"]


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


def settings_in_force(
    config: str | None = None, driver_root: str | None = None, dev_root: str | None = None
) -> Config:
    """Return what config.toml says, but for the roots that the command line names.

    Args:
        config: its path; None for that of the program's own --config, or the usual one.
        driver_root: where the driver's files are; None for the file's word.
        dev_root: where dev/ is; None for the file's word.

    Raises:
        ConfigError: it cannot be used, or the named one is not there.
    """
    from nvct.config import load

    named = config or click.get_current_context().meta.get("nvct.config")
    settings = load.load(named or load.path_from(os.environ), required=bool(named))
    return settings.replaced(
        driver_root=driver_root or settings.driver_root, dev_root=dev_root or settings.dev_root
    )


def words(*names: str, env: str | list[str], text: str) -> Callable[[Command], Command]:
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
