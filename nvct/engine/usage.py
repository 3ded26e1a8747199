# SPDX-License-Identifier: Apache-2.0
"""Names, defaults and checks that `nvct runtime` and `nvct install` share."""

from __future__ import annotations

import posixpath

from nvct.engine.model import Handler
from nvct.errors import UsageError
from nvct.paths import SHIM_PROGRAM

SUITS_ENGINE = "RUNTIME_SPECIFIC_DEFAULT"
"""Value of an option that stands for the engine's own default, as in NVIDIA's installer."""
NAME = "nvidia"
SHIM_PATH = f"/usr/bin/{SHIM_PROGRAM}"
# Name of a runtime and suffix of its program, as in NVIDIA's installer.
VARIANTS = ((NAME, ""), ("nvidia-cdi", ".cdi"), ("nvidia-legacy", ".legacy"))


def handlers(program: str, first: str = NAME) -> tuple[Handler, ...]:
    """Return the three runtimes of a program and its variants; `first` names the first one."""
    return tuple(
        Handler(name=first if name == NAME else name, path=program + suffix)
        for name, suffix in VARIANTS
    )


def check_absolute(option: str, path: str) -> None:
    """Refuse a path that is not absolute.

    Raises:
        UsageError: it is not.
    """
    if not posixpath.isabs(path):
        raise UsageError(f"{option} {path!r} is not an absolute path", hint="begin it with /")


def check_drop_in(engine: str, drop_in: str | None) -> None:
    """Refuse a drop-in for an engine that reads none.

    Raises:
        UsageError: Docker reads none.
    """
    if engine == "docker" and drop_in:
        raise UsageError("docker does not support drop-in configs", hint="use --config")


def check_name(name: str | None, option: str) -> None:
    """Refuse a runtime without a name; None stands for the default name.

    Raises:
        UsageError: the name is empty.
    """
    if name == "":
        raise UsageError("the runtime's name is empty", hint=f"{option}={NAME}")
