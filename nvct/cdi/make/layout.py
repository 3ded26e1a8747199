# SPDX-License-Identifier: Apache-2.0
"""The requested layout of a CDI specification: a mount of a view, or a mount per file."""

from __future__ import annotations

from typing import NamedTuple

from nvct.config.model import LAYOUTS
from nvct.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class LayoutRequest(NamedTuple):
    """The requested layout.

    Attributes:
        layout: auto, farm or classic.
        is_forced: the user named it for this specification.
        is_for_engines: the file is in a folder that engines read; a view is kept for it.
        is_of_this_host: the driver is that of config.toml.
        disabled_hooks: as in `nvct.cdi.make.generate.Options`.
        enabled_hooks: the same.
    """

    layout: str
    is_forced: bool
    is_for_engines: bool
    is_of_this_host: bool
    disabled_hooks: Sequence[str]
    enabled_hooks: Sequence[str]

    @property
    def may_be_farm(self) -> bool:
        """Whether the specification may mount a view."""
        return self.must_be_farm or (self.layout != "classic" and self.is_for_engines)

    @property
    def must_be_farm(self) -> bool:
        """Whether classic is no answer."""
        return self.is_forced and self.layout == "farm"


def check_layout(word: str) -> str:
    """Return a layout.

    Raises:
        UsageError: it is unknown.
    """
    if word not in LAYOUTS:
        raise UsageError(f"layout {word!r} is unknown", hint=f"use {', '.join(LAYOUTS)}")
    return word
