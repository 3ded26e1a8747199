# SPDX-License-Identifier: Apache-2.0
"""Where MPS runs: its folders, its programs, and the shared memory of clients and servers.

NVIDIA's programs are in this container if the driver was injected into it. Else they are in the
driver's root, and start there by chroot(2), or in the host's root if the driver's root has no C
library, as on GKE. Clients in pods see MPS_FOLDER/shm as /dev/shm, and the daemon must see the
same: it gets this mount in a mount namespace of its own.
"""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from nvct.agent.machine.driver_root import DEV_ROOT_ENV, with_driver_roots

CONTAINER_FOLDER = "/mps"
"""Where MPS_ROOT, a folder of the host, is mounted in NVIDIA's containers."""
DEFAULT_ROOT = "/run/nvidia/mps"
SHM = "shm"
INSIDE = "/tmp"  # noqa: S108 - a folder of every root, on which the folder of MPS is mounted
PROGRAM = "nvidia-cuda-mps-control"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = ("/usr/bin", "/bin")
LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib",
)  # fmt: skip
"""Folders of libraries in a driver's root."""
LOADERS = ("lib*/ld-linux*", "lib*/ld-musl*", "usr/lib*/ld-linux*", "lib*/*/ld-linux*")
"""Programs start only in a root that has one of these."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the programs run."""

    folder: str  # of MPS, with a folder for each resource
    root: str = "/"  # the root of the programs, "/" for this container's own
    is_private: bool = True  # whether they run in a mount namespace of their own
    driver: str = ""  # the driver's root below `root`, "" if it is the same

    def folders(self, resource: str) -> tuple[str, str]:
        """Return the folders of a resource's pipes and logs, for this process."""
        return f"{self.folder}/{resource}/pipe", f"{self.folder}/{resource}/log"

    def shm(self, resource: str) -> str:
        """Return the folder of a claim's own shared memory."""
        return f"{self.folder}/{resource}/{SHM}"

    def environment(self, resource: str) -> dict[str, str]:
        """Return the variables of the programs."""
        is_own = self.root == "/"
        folder = self.folder if is_own else INSIDE
        return {
            **(os.environ if is_own else self._paths()),
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/{resource}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/{resource}/log",
        }

    def _paths(self) -> dict[str, str]:
        if not self.driver:
            return {"PATH": PATH}
        return {
            "PATH": ":".join([*(f"{self.driver}{folder}" for folder in PROGRAMS), PATH]),
            "LD_LIBRARY_PATH": ":".join(f"{self.driver}{folder}" for folder in LIBRARIES),
        }

    def command(self, program: str, *words: str, shm: str = "") -> list[str]:
        """Return the command line of a program of the driver; `shm`: "" for the common folder."""
        if not self.is_private:
            return [program, *words]
        enter = [sys.executable, "-I", "-m", "nvct.agent.mps.enter"]
        return [*enter, self.root, self.folder, shm or f"{self.folder}/{SHM}", program, *words]


def of_environment(env: Mapping[str, str]) -> Place:
    """Return the place for the settings of an environment."""
    folder = CONTAINER_FOLDER
    if not os.path.isdir(folder):
        folder = env.get("MPS_ROOT") or DEFAULT_ROOT
    root, driver = "/", ""
    if shutil.which(PROGRAM) is None:
        driver_root = with_driver_roots(env).get("DRIVER_ROOT_CTR_PATH", "/driver-root")
        root = driver_root if os.path.isdir(driver_root) else "/"
        host = env.get(DEV_ROOT_ENV, "").rstrip("/")
        if host and root.startswith(f"{host}/") and not _starts_programs(root):
            root, driver = host, root.removeprefix(host).rstrip("/")
    return Place(folder, root, is_private=not has_shm(folder) or root != "/", driver=driver)


def _starts_programs(root: str) -> bool:
    return any(glob.glob(f"{glob.escape(root)}/{pattern}") for pattern in LOADERS)


def has_shm(folder: str) -> bool:
    """Return whether this container has the clients' /dev/shm, as in NVIDIA's manifests."""
    try:
        return os.path.samefile(f"{folder}/{SHM}", "/dev/shm")  # noqa: S108
    except OSError:
        return False
