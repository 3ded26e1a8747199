# SPDX-License-Identifier: Apache-2.0
"""What a container gets to use an MPS control daemon: a variable, and two mounts.

Contract: pure functions, for the answers of the device plugin and the claims of DRA alike.
"""

from __future__ import annotations

from typing import NamedTuple

from nvct.agent.mps.daemons import CLAIMS

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
FOLDER, SHM = "/mps", "/dev/shm"  # noqa: S108
"""Where containers have MPS's folders, and the shared memory of clients and servers."""


def variable(resource: str) -> tuple[str, str]:
    """Return the name and the value of the variable that names the pipes of a resource."""
    return PIPES, f"{FOLDER}/{resource}/pipe"


class Mount(NamedTuple):
    """A folder of the host in a container."""

    host_path: str
    path: str
    is_read_only: bool


def mounts(resource: str, root: str) -> tuple[Mount, Mount]:
    """Return the folders of a container: clients connect to sockets, and make no file there."""
    shm = f"{root}/{resource}/shm" if resource.startswith(CLAIMS) else f"{root}/shm"
    pipes = f"{resource}/pipe"
    return (
        Mount(f"{root}/{pipes}", f"{FOLDER}/{pipes}", is_read_only=True),
        Mount(shm, SHM, is_read_only=False),
    )
