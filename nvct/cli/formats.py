# SPDX-License-Identifier: Apache-2.0
"""The option --format of commands that list or show, and --json, short for --format json."""

from __future__ import annotations

import click

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.cli.options import Command

JSON = "nvct.json"


def format_option(*names: str, aliases: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Return a decorator that adds --format, with the first name as default, and --json.

    The command receives the name of the format as its parameter `form`; aliases are other names
    of --format, which a command had before.
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
