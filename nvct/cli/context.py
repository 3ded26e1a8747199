# SPDX-License-Identifier: Apache-2.0
"""What commands share without the command line library: messages and config.toml in force."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nvct.config.model import Config


def flat(values: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Return the words of a repeated option."""
    return tuple(word for value in values for word in value)


def say(text: str) -> None:
    """Say on stderr what --quiet keeps back."""
    if sys.stderr is not None and not _options().get("nvct.quiet"):
        sys.stderr.write(f"{text}\n")


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

    named = config or _options().get("nvct.config")
    settings = load.load(named or load.path_from(os.environ), required=bool(named))
    return settings.replaced(
        driver_root=driver_root or settings.driver_root, dev_root=dev_root or settings.dev_root
    )


def _options() -> Mapping[str, Any]:
    """Return the program's own options; empty where the command line library is not loaded."""
    click = sys.modules.get("click")
    context = click.get_current_context(silent=True) if click else None
    return context.meta if context else {}
