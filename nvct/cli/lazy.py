# SPDX-License-Identifier: Apache-2.0
"""Groups of commands as data, so that --help imports none: name -> (module, attribute, help)."""

from __future__ import annotations

import importlib
import os

from nvct.cli.gostyle import HELP, GoGroup
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    import click

SIMULATION = "nvct_sim"
"""Absent if distribution packages installed nvct without the package nvct-sim."""
TOOLS = ("apt", "dnf", "zypper")
"""Package managers that install a package by `TOOL install NAME`."""


class LazyGroup(GoGroup):
    """A group whose commands are imported when they are used."""

    def __init__(self, name: str, commands: Mapping[str, tuple[str, str, str]], text: str) -> None:
        """Store the table of commands."""
        super().__init__(name, help=text, context_settings={"help_option_names": ["-h", "--help"]})
        self.table = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        del ctx
        return sorted(self.table)

    def load(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a command.

        Raises:
            HostError: the command needs the simulation, which is not installed.
        """
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
    """Return the error of a command that needs the package nvct-sim."""
    import shutil

    tool = next(filter(shutil.which, TOOLS), "")
    return HostError(
        f"{command} needs the package nvct-sim, which is not installed",
        hint=f"run {tool} install nvct-sim" if tool else "install nvct-sim",
    )
