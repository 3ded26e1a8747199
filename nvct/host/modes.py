# SPDX-License-Identifier: Apache-2.0
"""The modes of discovery, by the names that `nvidia-ctk cdi generate --mode` accepts.

Contract: only the modules of the requested mode are imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from nvct.errors import UsageError
from nvct.host import platform
from nvct.host.discovery_options import DiscoveryOptions
from nvct.host.model import Inventory, Mode
from nvct.host.roots import Roots

Finder: TypeAlias = Callable[[Roots, DiscoveryOptions], Inventory]


def _nvml(roots: Roots, options: DiscoveryOptions) -> Inventory:
    from nvct.host import discover

    return discover.discover(roots, options)


def _csv(roots: Roots, options: DiscoveryOptions) -> Inventory:
    from nvct.host.tegra import board as tegra

    return tegra.discover(roots, options)


def _wsl(roots: Roots, options: DiscoveryOptions) -> Inventory:
    from nvct.host import wsl

    return wsl.discover(roots, options)


def _feature(mode: Mode, roots: Roots, options: DiscoveryOptions) -> Inventory:
    from nvct.host import feature_modes

    if mode == "management":
        return feature_modes.discover_management(roots, options)
    if mode == "imex":
        return feature_modes.discover_imex(roots, options)
    return feature_modes.discover(mode, roots, options)


FINDERS: dict[Mode, Finder] = {
    "nvml": _nvml,
    "csv": _csv,
    "wsl": _wsl,
    "management": partial(_feature, "management"),
    "imex": partial(_feature, "imex"),
    "gdrcopy": partial(_feature, "gdrcopy"),
    "gds": partial(_feature, "gds"),
    "mofed": partial(_feature, "mofed"),
    "nvswitch": partial(_feature, "nvswitch"),
}


def detect(roots: Roots) -> Mode:
    """Return the mode that "auto" stands for on a machine."""
    return platform.detect(roots)[0]


def discover(mode: str, roots: Roots, options: DiscoveryOptions | None = None) -> Inventory:
    """Return the inventory of a machine in one mode; "auto" selects the machine's own mode.

    Raises:
        UsageError: the mode is unknown, or a search path is not absolute.
        DriverNotFoundError: no driver is installed or loaded.
        HostError: the machine has no device of the mode.
    """
    chosen, reason = platform.detect(roots) if mode == "auto" else (mode, "")
    for name, finder in FINDERS.items():
        if name == chosen:
            inventory = finder(roots, options or DiscoveryOptions())
            note = (f"mode auto is {name}: {reason}",) if reason else ()
            return replace(inventory, notes=(*note, *inventory.notes))
    raise UsageError(
        f"mode {mode!r} is unknown", hint=f"it is one of auto, {', '.join(sorted(FINDERS))}"
    )
