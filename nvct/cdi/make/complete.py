# SPDX-License-Identifier: Apache-2.0
"""Checks that a driver has the files that a specification must give."""

from __future__ import annotations

from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from nvct.host.model import Inventory


def check(inventory: Inventory, capabilities: Container[str]) -> None:
    """Refuse a driver without libcuda if containers are to have the capability compute.

    nvidia-ctk 1.17 fails as well: it searches the driver's libraries beside libcuda.

    Raises:
        HostError: the library is missing, as during the installation of a driver.
    """
    if inventory.mode != "nvml" or not inventory.gpus or "compute" not in capabilities:
        return
    paths = (file.container_path.rpartition("/")[2] for file in inventory.files)
    if not any(name.startswith("libcuda.so.") for name in paths):
        raise HostError(
            f"the driver {inventory.driver_version} has no libcuda.so: no GPU can compute with it",
            hint="install it (libcuda1, nvidia-driver-cuda-libs), or name other --capabilities",
        )
