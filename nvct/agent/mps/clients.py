# SPDX-License-Identifier: Apache-2.0
"""What a container gets to use an MPS control daemon: a variable, and two mounts.

Contract: pure functions, for the answers of the device plugin and the claims of DRA alike.
"""

from __future__ import annotations

from nvct.agent.mps.daemons import CLAIMS

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
FOLDER, SHM = "/mps", "/dev/shm"  # noqa: S108
"""Where containers have MPS's folders, and the shared memory of clients and servers."""


def variable(resource: str) -> tuple[str, str]:
    """Return the name and the value of the variable that names the pipes of a resource."""
    return PIPES, f"{FOLDER}/{resource}/pipe"


def mounts(resource: str, root: str) -> dict[str, str]:
    """Return the paths in the container by those on the host.

    Args:
        resource: that a daemon serves, or a claim.
        root: the folder of MPS on the host.
    """
    shm = f"{root}/{resource}/shm" if resource.startswith(CLAIMS) else f"{root}/shm"
    return {f"{root}/{resource}/pipe": f"{FOLDER}/{resource}/pipe", shm: SHM}
