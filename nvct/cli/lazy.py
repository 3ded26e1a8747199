# SPDX-License-Identifier: Apache-2.0
"""Groups of commands as data, so that --help imports none: name -> (module, attribute, help)."""

from __future__ import annotations

import importlib

from nvct.cli.gostyle import HELP, GoGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    import click


class LazyGroup(GoGroup):
    """A group whose commands are imported when they are used."""

    def __init__(self, name: str, commands: Mapping[str, tuple[str, str, str]], text: str) -> None:
        """Keep the table."""
        super().__init__(name, help=text, context_settings={"help_option_names": ["-h", "--help"]})
        self.table = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        del ctx
        return sorted(self.table)

    def load(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a command."""
        del ctx
        if name not in self.table:
            return None
        module, attribute, _text = self.table[name]
        found: click.Command = getattr(importlib.import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        del ctx
        if not self.table:
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][2]) for name in sorted(self.table)])

    def _is_command(self, word: str) -> bool:
        return word in HELP or word in self.table
