# SPDX-License-Identifier: Apache-2.0
"""Whether a machine has an NVIDIA GPU, with or without a driver."""

from __future__ import annotations

from nvct.host import platform, procfs
from nvct.host.gpu import pci
from nvct.host.roots import Roots

MACHINE = Roots(proc="/proc", sys="/sys")


def has_gpu(roots: Roots = MACHINE) -> bool:
    """Return whether this machine has a GPU that nvct could serve; no GPU is woken."""
    return bool(
        pci.count(roots) or procfs.driver_version(roots) or platform.detect(roots)[0] != "nvml"
    )
