# SPDX-License-Identifier: Apache-2.0
"""The modes of discovery, by the names that `nvidia-ctk cdi generate --mode` accepts; mode "auto".

Contract: only the modules of the requested mode are imported. Mode "auto" looks at files only: it
loads no library and does not call NVML. nvidia-container-toolkit v1.20 (go-nvlib, pkg/nvlib/info)
loads libdxcore and NVML for this.
"""

from __future__ import annotations

import os
import posix
from dataclasses import replace
from typing import get_args

from nvct.errors import UsageError
from nvct.host import procfs
from nvct.host.discovery_options import DEFAULTS, DiscoveryOptions
from nvct.host.gpu import pci
from nvct.host.model import Inventory, Mode
from nvct.host.roots import DXCORE, WSL_LIBRARIES, Roots, join

MODES: tuple[Mode, ...] = get_args(Mode)


def _find(mode: Mode, roots: Roots, options: DiscoveryOptions) -> Inventory:
    if mode == "nvml":
        from nvct.host import discover

        return discover.discover(roots, options)
    if mode == "csv":
        from nvct.host.tegra import board

        return board.discover(roots, options)
    if mode == "wsl":
        from nvct.host import wsl

        return wsl.discover(roots, options)
    from nvct.host import feature_modes

    if mode == "management":
        return feature_modes.discover_management(roots, options)
    if mode == "imex":
        return feature_modes.discover_imex(roots, options)
    return feature_modes.discover(mode, roots, options)


def detect(roots: Roots) -> Mode:
    """Return the mode that "auto" stands for on a machine."""
    return mode_and_reason(roots)[0]


def discover(mode: str, roots: Roots, options: DiscoveryOptions = DEFAULTS) -> Inventory:
    """Return the inventory of a machine in one mode; "auto" selects the machine's own mode.

    Raises:
        UsageError: the mode is unknown, or a search path is not absolute.
        DriverNotFoundError: no driver is installed or loaded.
        HostError: the machine has no device of the mode.
    """
    chosen, reason = mode_and_reason(roots) if mode == "auto" else (mode, "")
    for name in MODES:
        if name == chosen:
            inventory = _find(name, roots, options)
            note = (f"mode auto is {name}: {reason}",) if reason else ()
            return replace(inventory, notes=(*note, *inventory.notes))
    raise UsageError(
        f"mode {mode!r} is unknown", hint=f"it is one of auto, {', '.join(sorted(MODES))}"
    )


def is_wsl(roots: Roots) -> bool:
    """Return whether Windows drives the GPUs of this machine.

    A Hyper-V guest with a GPU of its own can have both /dev/dxg and the kernel module.
    """
    if procfs.driver_version(roots):
        return False
    library = join(roots.driver_root, f"{WSL_LIBRARIES}/{DXCORE}")
    return os.path.lexists(f"{roots.dev}/dxg") or os.path.lexists(library)


def mode_and_reason(roots: Roots) -> tuple[Mode, str]:
    """Return the mode that fits a machine, and the reason."""
    if is_wsl(roots):
        return "wsl", f"{roots.dev}/dxg or {DXCORE} is there"
    if _may_be_tegra(roots):
        from nvct.host.tegra import board as tegra

        if tegra.is_tegra(roots):
            return "csv", "the files of a Tegra are there"
    return "nvml", "it is neither WSL nor a Tegra"


def _may_be_tegra(roots: Roots) -> bool:
    return posix.uname().machine == "aarch64" or any(
        os.path.lexists(path)
        for path in (
            f"{roots.etc}/nv_tegra_release",
            join(roots.driver_root, "etc/nv_tegra_release"),
            f"{roots.sys}/devices/soc0/family",
            f"{roots.sys}/module/nvgpu",
        )
    )


MACHINE = Roots(proc="/proc", sys="/sys")


def has_gpu(roots: Roots = MACHINE) -> bool:
    """Return whether this machine has a GPU that nvct can serve; no GPU is woken."""
    return bool(pci.count(roots) or procfs.driver_version(roots) or detect(roots) != "nvml")
