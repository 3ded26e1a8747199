# SPDX-License-Identifier: Apache-2.0
"""Whether a driver has what a specification must have."""

from __future__ import annotations

from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from nvct.host.model import Inventory


def check(inventory: Inventory, capabilities: Container[str]) -> None:
    """Refuse a driver without CUDA's library where containers are to compute.

    nvidia-ctk 1.17 fails as well: it finds the driver's libraries beside libcuda.

    Raises:
        HostError: the library is missing, as in the middle of a driver's installation.
    """
    if inventory.mode != "nvml" or not inventory.gpus or "compute" not in capabilities:
        return
    paths = (file.container_path.rpartition("/")[2] for file in inventory.files)
    if not any(name.startswith("libcuda.so.") for name in paths):
        raise HostError(
            f"the driver {inventory.driver_version} has no libcuda.so: no GPU can compute with it",
            hint="install it (libcuda1, nvidia-driver-cuda-libs), or name other --capabilities",
        )
