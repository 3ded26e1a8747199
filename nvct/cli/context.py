# SPDX-License-Identifier: Apache-2.0
"""Messages and the settings in force, for commands with or without the command line library."""

from __future__ import annotations

import os
import sys

from nvct.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from nvct.config.model import Config


def say(text: str) -> None:
    """Print a line to stderr, unless --quiet is given; see `tell`."""
    if sys.stderr is not None and not _options().get("nvct.quiet"):
        sys.stderr.write(f"{printable(text)}\n")


def warn(texts: Iterable[str]) -> None:
    """Print warnings as `say` does, a line each."""
    for text in texts:
        say(f"warning: {text}")


def tell(*lines: str) -> None:
    """Print lines to stdout, with their control characters escaped."""
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


def settings_in_force(
    config: str | None = None, driver_root: str | None = None, dev_root: str | None = None
) -> Config:
    """Return the settings of config.toml, with the roots that the command line names.

    ConfigError if config.toml is not valid, or the named file does not exist.
    """
    from nvct.config import load

    config_path = config or _options().get("nvct.config")
    return load.in_force(config_path, os.environ, driver_root, dev_root)


def _options() -> Mapping[str, Any]:
    """Return the program's global options; empty if the command line library is not loaded."""
    click = sys.modules.get("click")
    context = click.get_current_context(silent=True) if click else None
    return context.meta if context else {}
