# SPDX-License-Identifier: Apache-2.0
"""The modes of discovery, by the names that `nvidia-ctk cdi generate --mode` accepts.

Contract: only the modules of the requested mode are imported.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nvct.errors import UsageError
from nvct.host import platform
from nvct.host.discovery_options import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from nvct.host.model import Inventory, Mode
    from nvct.host.roots import Roots

    Finder: TypeAlias = Callable[[Roots, Wanted], Inventory]


def _nvml(roots: Roots, wanted: Wanted) -> Inventory:
    from nvct.host import discover

    return discover.discover(roots, wanted)


def _csv(roots: Roots, wanted: Wanted) -> Inventory:
    from nvct.host.tegra import board as tegra

    return tegra.find(roots, wanted)


def _wsl(roots: Roots, wanted: Wanted) -> Inventory:
    from nvct.host import wsl

    return wsl.find(roots, wanted)


def _management(roots: Roots, wanted: Wanted) -> Inventory:
    from nvct.host.gpu import management

    return management.find(roots, wanted)


def _imex(roots: Roots, wanted: Wanted) -> Inventory:
    from nvct.host.gpu import imex

    return imex.find(roots, wanted)


def _gated(mode: Mode, roots: Roots, wanted: Wanted) -> Inventory:
    from nvct.host import feature_modes

    return feature_modes.find(mode, roots, wanted)


FINDERS: dict[Mode, Finder] = {
    "nvml": _nvml,
    "csv": _csv,
    "wsl": _wsl,
    "management": _management,
    "imex": _imex,
    "gdrcopy": partial(_gated, "gdrcopy"),
    "gds": partial(_gated, "gds"),
    "mofed": partial(_gated, "mofed"),
    "nvswitch": partial(_gated, "nvswitch"),
}


def detect(roots: Roots) -> Mode:
    """Return the mode that "auto" stands for on a machine."""
    return platform.detect(roots)[0]


def find(mode: str, roots: Roots, wanted: Wanted | None = None) -> Inventory:
    """Return the inventory of a machine in one mode; "auto" selects the machine's own mode.

    Raises:
        UsageError: the mode is unknown, or a search path is not absolute.
        DriverNotFoundError: no driver is installed or loaded.
        HostError: the machine has no device of the mode.
    """
    chosen, why = platform.detect(roots) if mode == "auto" else (mode, "")
    for name, finder in FINDERS.items():
        if name == chosen:
            inventory = finder(roots, wanted or Wanted())
            note = (f"mode auto is {name}: {why}",) if why else ()
            return replace(inventory, notes=(*note, *inventory.notes))
    raise UsageError(
        f"mode {mode!r} is unknown", hint=f"it is one of auto, {', '.join(sorted(FINDERS))}"
    )
