# SPDX-License-Identifier: Apache-2.0
"""The ways of looking at a machine, by the names that `nvidia-ctk cdi generate --mode` takes."""

from __future__ import annotations

from nvct.errors import UsageError
from nvct.host import discover
from nvct.host.wanted import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvct.host.model import Inventory, Mode
    from nvct.host.roots import Roots

FINDERS: dict[Mode, Callable[[Roots, Wanted], Inventory]] = {"nvml": discover.discover}


def detect(roots: Roots) -> Mode:
    """Return what "auto" means on a machine."""
    del roots
    return "nvml"


def find(mode: str, roots: Roots, wanted: Wanted | None = None) -> Inventory:
    """Return what a machine has, seen in one mode; "auto" is the machine's own.

    Raises:
        UsageError: there is no such mode.
        DriverNotFoundError: no driver is installed or loaded.
    """
    for name, finder in FINDERS.items():
        if name == (detect(roots) if mode == "auto" else mode):
            return finder(roots, wanted or Wanted())
    raise UsageError(f"mode {mode!r} is unknown", hint=f"it is one of auto, {', '.join(FINDERS)}")
