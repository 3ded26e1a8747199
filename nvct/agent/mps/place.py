# SPDX-License-Identifier: Apache-2.0
"""Where MPS runs: its folders, its programs, and the shared memory of clients and servers.

NVIDIA's programs are in this container if the driver was injected into it. Else they are in the
driver's root, and start there by chroot(2). Clients in pods see MPS_FOLDER/shm as /dev/shm, so it
has to be that of the daemon as well: the daemon gets it in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass

from nvct.agent.driver_root import with_driver_roots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CONTAINER_FOLDER = "/mps"
"""Where MPS_ROOT, a folder of the host, is mounted in NVIDIA's containers."""
DEFAULT_ROOT = "/run/nvidia/mps"
SHM = "shm"
INSIDE = "/tmp"  # noqa: S108 - a folder of every root, on which the folder of MPS is mounted
PROGRAM = "nvidia-cuda-mps-control"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the programs run.

    Attributes:
        folder: of MPS, with a folder for each resource.
        root: the driver's root, "/" for this container's own.
        is_private: whether they run in a mount namespace of their own.
    """

    folder: str
    root: str = "/"
    is_private: bool = True

    def folders(self, resource: str) -> tuple[str, str]:
        """Return the folders of a resource's pipes and logs, for this process."""
        return f"{self.folder}/{resource}/pipe", f"{self.folder}/{resource}/log"

    def environment(self, resource: str) -> dict[str, str]:
        """Return the variables of the programs."""
        is_own = self.root == "/"
        folder = self.folder if is_own else INSIDE
        return {
            **(os.environ if is_own else {"PATH": PATH}),
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/{resource}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/{resource}/log",
        }

    def command(self, program: str, *words: str) -> list[str]:
        """Return the command line of a program of the driver."""
        if not self.is_private:
            return [program, *words]
        enter = [sys.executable, "-I", "-m", "nvct.agent.mps.enter"]
        return [*enter, self.root, self.folder, program, *words]


def of_environment(env: Mapping[str, str]) -> Place:
    """Return the place for the settings of an environment."""
    folder = CONTAINER_FOLDER
    if not os.path.isdir(folder):
        folder = env.get("MPS_ROOT") or DEFAULT_ROOT
    root = "/"
    if shutil.which(PROGRAM) is None:
        driver_root = with_driver_roots(env).get("DRIVER_ROOT_CTR_PATH", "/driver-root")
        root = driver_root if os.path.isdir(driver_root) else "/"
    return Place(folder, root, is_private=not has_shm(folder) or root != "/")


def has_shm(folder: str) -> bool:
    """Return whether /dev/shm is that of the clients already, as in NVIDIA's manifests."""
    try:
        return os.path.samefile(f"{folder}/{SHM}", "/dev/shm")  # noqa: S108
    except OSError:
        return False
