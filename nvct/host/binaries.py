# SPDX-License-Identifier: Apache-2.0
"""Programs of the driver that containers get.

Contract: a program is taken from the driver root alone, never from the PATH of the host beside
it (nvidia-container-toolkit v1.20 does that, and may mix two drivers). No setuid program is in
the list.
"""

from __future__ import annotations

from nvct.host.model import DriverFile
from nvct.paths import DEFAULT_PATH_DIRS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.model import Capability, Findings
    from nvct.host.roots import Roots
    from nvct.host.tree import Tree

PROGRAMS: tuple[tuple[str, Capability], ...] = (
    ("nvidia-smi", "utility"),
    ("nvidia-debugdump", "utility"),
    ("nvidia-persistenced", "utility"),
    ("nvidia-imex", "utility"),
    ("nvidia-imex-ctl", "utility"),
    ("nvidia-cuda-mps-control", "compute"),
    ("nvidia-cuda-mps-server", "compute"),
    # nvidia-xconfig belongs to the graphics discovery, which is not there yet.
)
S_IXANY = 0o111


def find(tree: Tree, roots: Roots, findings: Findings) -> list[DriverFile]:
    """Return the programs, each from the first directory of the usual PATH that has it."""
    files = []
    for name, capability in PROGRAMS:
        for directory in DEFAULT_PATH_DIRS:
            found = tree.find(f"{directory}/{name}")
            if found is None or not found.mode & S_IXANY:
                continue
            # A link (Debian's alternatives) is mounted under its own name.
            files.append(
                DriverFile(
                    host_path=tree.host_path(found.real),
                    container_path=roots.container_path(tree.host_path(found.path)),
                    reason="program of the driver",
                    kind="binary",
                    capability=capability,
                )
            )
            break
    if not any(file.container_path.endswith("/nvidia-smi") for file in files):
        findings.note(f"{tree.host_root} has no nvidia-smi")
    return files
