# SPDX-License-Identifier: Apache-2.0
"""Parses command lines as the incumbent does: Go's flag package, and urfave/cli v3 on top of it.

One dash equals two, a switch can have a value, global options can stand anywhere, and `help` is a
command of each group. As in nvidia-ctk, surplus arguments are ignored. The commands of a
`LazyGroup` are data, so that --help imports none.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import click

from nvct.cli.ending import INCUMBENT
from nvct.errors import HostError

Command: TypeAlias = Callable[..., Any]
Adds: TypeAlias = Callable[[Command], Command]

HELP = ("help", "h")
OFF = "nvct.off"
SIMULATION = "nvct_sim"
"""Absent if distribution packages installed nvct without the package nvct-sim."""
TOOLS = ("apt", "dnf", "zypper")  # Package managers that install a package by `TOOL install NAME`


class GoStyle(click.Command):
    """A command that takes options in the incumbent's form: -mode=nvml, --dry-run=false."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Convert the arguments to click's form, and parse them."""
        try:
            written = self._written(ctx, args)
            if is_incumbents(ctx):
                written = self._without_surplus(ctx, written)
            return super().parse_args(ctx, written)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # names the command in the message
            raise

    def make_parser(self, ctx: click.Context) -> Any:  # noqa: ANN401  click keeps its type private
        """Return a parser that also accepts the internal form of --NAME=false."""
        parser = super().make_parser(ctx)
        for option in self.get_params(ctx):
            off_names = [_off(name) for name in option.opts if _off(name) in ctx.meta.get(OFF, ())]
            if off_names and isinstance(option, click.Option):
                parser.add_option(
                    obj=option, opts=off_names, dest=option.name, action="store_const", const=False
                )
        return parser

    def _without_surplus(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Let the parser ignore surplus words; if the first one is help, print the help."""
        ctx.allow_extra_args = True
        if self._positional(ctx, args)[:1] in (["help"], ["h"]):
            self._show_help(ctx)
        return args

    def _written(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        switches = {name: option.is_flag for option in options for name in option.opts}
        written: list[str] = []
        for index, arg in enumerate(args):
            if arg == "--" or self._is_command(arg):
                return written + args[index:]
            written.append(_as_click_wants(arg, switches, ctx))
        return written

    def _is_command(self, word: str) -> bool:
        """Report whether this word is a command, to which later options belong."""
        del word
        return False

    def _positional(self, ctx: click.Context, args: list[str]) -> list[str]:
        return list(self.make_parser(ctx).parse_args(args=list(args))[1])

    def _show_help(self, ctx: click.Context) -> None:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class UnknownCommandError(click.UsageError):
    """Error: nvidia-ctk has no such command; the exit status is urfave/cli's."""

    exit_code = 3

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.message, error.ctx)
        self.possibilities = getattr(error, "possibilities", None)


class GoGroup(GoStyle, click.Group):
    """A group of GoStyle commands, with a command `help`."""

    aliases: Mapping[str, str] = MappingProxyType({})

    def _without_surplus(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments without surplus words, if the group itself is a command.

        Another group prints its help if no command is named.
        """
        positional = self._positional(ctx, args)
        if not positional and not self.invoke_without_command:
            if args:
                click.Command.parse_args(self, ctx, args)  # may contain --version
            self._show_help(ctx)
        while positional and self.invoke_without_command and not self._is_command(positional[0]):
            args = [*args[: len(args) - len(positional)], *positional[1:]]
            positional = self._positional(ctx, args)
        return args

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command that also takes the global options."""
        command = self.load(ctx, self.aliases.get(cmd_name, cmd_name))
        if command is None:
            return _help_command(self) if cmd_name in HELP else None
        if not command.context_settings.get("ignore_unknown_options"):
            _add_globals(command)
        return command

    def load(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command of this group with this name, None if there is none."""
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if is_incumbents(ctx):
                raise UnknownCommandError(error) from error
            raise

    def _is_command(self, word: str) -> bool:
        return word in HELP or word in self.commands or word in self.aliases


def is_incumbents(ctx: click.Context) -> bool:
    """Report whether the program was called by the incumbent's name."""
    return ctx.find_root().info_name == INCUMBENT


def global_options(*, hidden: bool) -> tuple[Adds, ...]:
    """Return the global options, as decorators; hidden ones read no environment variable."""

    def env(name: str) -> str | None:
        return None if hidden else f"NVIDIA_CTK_{name}"

    return (
        click.option("--config", envvar=env("CONFIG"), expose_value=False, callback=_keep,
                     hidden=hidden, help="The config.toml to read."),
        click.option("--quiet", is_flag=True, envvar=env("QUIET"), expose_value=False,
                     callback=_keep, hidden=hidden, help="Print only results and errors."),
        click.option("--debug", "-d", is_flag=True, envvar=env("DEBUG"), expose_value=False,
                     callback=_keep, hidden=hidden, help="Show the traceback of a bug."),
    )  # fmt: skip


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Store a global option in the context that all commands share."""
    if value or f"nvct.{param.name}" not in ctx.meta:
        ctx.meta[f"nvct.{param.name}"] = value
    if param.name == "debug" and value:
        os.environ["NVCT_DEBUG"] = "1"


def _add_globals(command: click.Command) -> None:
    """Add the global options to a command, except those that it already has."""
    names = {name for param in command.params for name in (*param.opts, param.name or "")}
    extra = click.Command(None)
    for add in global_options(hidden=True):
        add(extra)
    for option in extra.params:
        if not names & {option.opts[0], option.name or ""}:
            option.opts = [name for name in option.opts if name not in names]
            command.params.append(option)


def _help_command(group: click.Group) -> click.Command:

    @click.command("help", hidden=True)
    @click.argument("names", nargs=-1)
    @click.pass_context
    def show(ctx: click.Context, names: tuple[str, ...]) -> None:
        parent = ctx.parent or ctx
        help_context: click.Context = parent
        if names:
            _, command, _ = group.resolve_command(parent, list(names))
            if command is not None:  # None: already refused
                help_context = click.Context(command, info_name=names[0], parent=parent)
        click.echo(help_context.get_help(), color=ctx.color)

    return show


def _off(name: str) -> str:
    """Return the internal form of NAME=false for click; no command line can contain it."""
    return f"{name} is off"


def _as_click_wants(arg: str, switches: dict[str, bool], ctx: click.Context) -> str:
    name, equals, value = arg.partition("=")
    if name.startswith("-") and f"-{name}" in switches:
        name = f"-{name}"
    if not (equals and switches.get(name)):
        return f"{name}{equals}{value}"
    from nvct.paths import FALSE, TRUE  # not needed for --help

    if value in TRUE:
        return name
    if value in FALSE:
        ctx.meta.setdefault(OFF, set()).add(_off(name))
        return _off(name)
    raise click.UsageError(f"{value!r} is not a truth value for {name}", ctx)


class LazyGroup(GoGroup):
    """A group whose commands are imported when they are used."""

    def __init__(self, name: str, commands: Mapping[str, tuple[str, str, str]], text: str) -> None:
        super().__init__(name, help=text, context_settings={"help_option_names": ["-h", "--help"]})
        self.table = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        del ctx
        return sorted(self.table)

    def load(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a command; HostError if the simulation it needs is not installed."""
        if name not in self.table:
            return None
        module, attribute, _text = self.table[name]
        try:
            command: click.Command = getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            if (error.name or "").startswith(SIMULATION) and not _has_simulation():
                raise _no_simulation(f"{ctx.command_path} {name}") from error
            raise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        if not self.table:
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][2]) for name in sorted(self.table)])

    def _is_command(self, word: str) -> bool:
        return word in HELP or word in self.table


def _has_simulation() -> bool:
    """Report whether the simulation's source files exist; leftover byte code is not enough."""
    packages = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    return os.path.exists(os.path.join(packages, SIMULATION, "__init__.py"))


def _no_simulation(command: str) -> HostError:
    import shutil

    tool = next(filter(shutil.which, TOOLS), "")
    return HostError(
        f"{command} needs the package nvct-sim, which is not installed",
        hint=f"run {tool} install nvct-sim" if tool else "install nvct-sim",
    )
