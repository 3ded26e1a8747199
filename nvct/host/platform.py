# SPDX-License-Identifier: Apache-2.0
"""Which kind of machine this is, told by its files: what the mode "auto" means.

Contract: no library is loaded and NVML is not asked. nvidia-container-toolkit v1.20 (go-nvlib,
pkg/nvlib/info) loads libdxcore and NVML to find out.
"""

from __future__ import annotations

import os
import posix

from nvct.host import procfs
from nvct.host.roots import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.model import Mode
    from nvct.host.roots import Roots

# Where WSL puts the libraries of Windows's GPU drivers, https://learn.microsoft.com/windows/wsl.
WSL_LIBRARIES = "/usr/lib/wsl/lib"
DXCORE = "libdxcore.so"


def is_wsl(roots: Roots) -> bool:
    """Whether Windows drives the GPUs of this machine.

    A Hyper-V guest with a GPU of its own may have /dev/dxg as well, and a kernel module besides.
    """
    if procfs.driver_version(roots):
        return False
    library = join(roots.driver_root, f"{WSL_LIBRARIES}/{DXCORE}")
    return os.path.lexists(f"{roots.dev}/dxg") or os.path.lexists(library)


def detect(roots: Roots) -> tuple[Mode, str]:
    """Return the mode that fits a machine, and why."""
    if is_wsl(roots):
        return "wsl", f"{roots.dev}/dxg or {DXCORE} is there"
    if _may_be_tegra(roots):
        from nvct.host.tegra import board as tegra

        if tegra.is_tegra(roots):
            return "csv", "the files of a Tegra are there"
    return "nvml", "it is neither WSL nor a Tegra"


def _may_be_tegra(roots: Roots) -> bool:
    """Whether it is worth loading what knows Tegras."""
    return posix.uname().machine == "aarch64" or any(
        os.path.lexists(path)
        for path in (
            f"{roots.etc}/nv_tegra_release",
            join(roots.driver_root, "etc/nv_tegra_release"),
            f"{roots.sys}/devices/soc0/family",
            f"{roots.sys}/module/nvgpu",
        )
    )
