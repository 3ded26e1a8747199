# SPDX-License-Identifier: Apache-2.0
"""Detects the kind of a machine by its files, for mode "auto"; and whether it has a GPU.

Contract: no library is loaded and NVML is not called. nvidia-container-toolkit v1.20 (go-nvlib,
pkg/nvlib/info) loads libdxcore and NVML for this.
"""

from __future__ import annotations

import os
import posix

from nvct.host import procfs
from nvct.host.gpu import pci
from nvct.host.model import Mode
from nvct.host.roots import Roots, join

# WSL's libraries of the Windows GPU drivers, https://learn.microsoft.com/windows/wsl.
WSL_LIBRARIES = "/usr/lib/wsl/lib"
DXCORE = "libdxcore.so"


def is_wsl(roots: Roots) -> bool:
    """Return whether Windows drives the GPUs of this machine.

    A Hyper-V guest with a GPU of its own may have both /dev/dxg and the kernel module.
    """
    if procfs.driver_version(roots):
        return False
    library = join(roots.driver_root, f"{WSL_LIBRARIES}/{DXCORE}")
    return os.path.lexists(f"{roots.dev}/dxg") or os.path.lexists(library)


def detect(roots: Roots) -> tuple[Mode, str]:
    """Return the mode that fits a machine, and the reason."""
    if is_wsl(roots):
        return "wsl", f"{roots.dev}/dxg or {DXCORE} is there"
    if _may_be_tegra(roots):
        from nvct.host.tegra import board as tegra

        if tegra.is_tegra(roots):
            return "csv", "the files of a Tegra are there"
    return "nvml", "it is neither WSL nor a Tegra"


def _may_be_tegra(roots: Roots) -> bool:
    """Return whether to import the module for Tegra boards."""
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
    """Return whether this machine has a GPU that nvct could serve; no GPU is woken."""
    return bool(pci.count(roots) or procfs.driver_version(roots) or detect(roots)[0] != "nvml")
