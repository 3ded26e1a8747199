# SPDX-License-Identifier: Apache-2.0
"""Sockets of the driver's daemons: persistenced, fabric manager, MPS.

Contract: a socket must be a socket, and the MPS directory a directory of root: anybody can make a
link in /tmp, and such a link must not choose what containers get.
"""

from __future__ import annotations

import os
import stat

from nvct.host.model import Capability, DriverFile, Findings
from nvct.host.roots import Roots, join

SOCKETS: tuple[tuple[str, Capability], ...] = (
    ("nvidia-persistenced/socket", "utility"),
    ("nvidia-fabricmanager/socket", "utility"),
)
MPS_DIR = "tmp/nvidia-mps"


def find_sockets(roots: Roots, findings: Findings) -> list[DriverFile]:
    """Return the sockets of running daemons, from the driver root or else from the host."""
    files = []
    in_root = join(roots.driver_root, "run")
    for name, capability in SOCKETS:
        for directory in dict.fromkeys((in_root, join(roots.driver_root, "var/run"), roots.run)):
            path = join(directory, name)
            if _lstat(path, stat.S_IFSOCK):
                files.append(_socket(path, f"/run/{name}", capability))
                break
            if os.path.lexists(path):
                findings.leave_out(path, "no socket")
    mps = join(roots.driver_root, MPS_DIR)
    if status := _lstat(mps, stat.S_IFDIR):
        if status.st_uid == 0:
            # nvidia-container-toolkit v1.20 looks for a file here and never finds the directory.
            files.append(_socket(mps, f"/{MPS_DIR}", "compute"))
        else:
            findings.warn(f"{mps} belongs to user {status.st_uid}, not to root: left out")
            findings.leave_out(mps, f"belongs to user {status.st_uid}, not to root")
    return files


def _lstat(path: str, kind: int) -> os.stat_result | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status if stat.S_IFMT(status.st_mode) == kind else None


def _socket(host_path: str, container_path: str, capability: Capability) -> DriverFile:
    return DriverFile(
        host_path=host_path,
        container_path=container_path,
        reason="socket of a daemon that runs",
        kind="socket",
        capability=capability,
    )
