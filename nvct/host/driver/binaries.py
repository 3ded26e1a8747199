# SPDX-License-Identifier: Apache-2.0
"""Programs of the driver that containers get.

Contract: programs come from the driver root only. nvidia-container-toolkit v1.20 also searches
the PATH of the host, which may mix two drivers. A setuid or setgid program is left out.
"""

from __future__ import annotations

from nvct.errors import NvctError
from nvct.host.driver import names as driver_names
from nvct.host.driver.tree import Tree, TreeFile
from nvct.host.model import Capability, DriverFile, Findings
from nvct.host.roots import Roots, join
from nvct.paths import DEFAULT_PATH_DIRS

PROGRAMS: tuple[tuple[str, Capability], ...] = (
    ("nvidia-smi", "utility"),
    ("nvidia-debugdump", "utility"),
    ("nvidia-persistenced", "utility"),
    # Of libnvidia-container's list, not of the CDI specs of nvidia-container-toolkit v1.20.
    ("nv-fabricmanager", "utility"),
    ("nvidia-imex", "utility"),
    ("nvidia-imex-ctl", "utility"),
    ("nvidia-cuda-mps-control", "compute"),
    ("nvidia-cuda-mps-server", "compute"),
    ("nvidia-xconfig", "graphics"),
)
LEFT_OUT = {
    "nvidia-modprobe": "setuid: it loads modules and makes device nodes on the host",
    "nvidia-settings": "a program for the host's desktop",
    "nvidia-powerd": "a daemon of the host",
    "nvidia-gridd": "a daemon of the host",
    "nvidia-sleep.sh": "it suspends the host",
    "nvidia-ngx-updater": "it changes the host's files",
    "nvidia-pcc": "a compiler for Vulkan SC, which no container asks for",
    "nvidia-bug-report.sh": "it describes the host",
    "nvidia-installer": "it changes the host's files",
    "nvidia-uninstall": "it changes the host's files",
    "nvidia-fabricmanager-start.sh": "it starts a daemon of the host",
    "nvswitch-audit": "a tool for the fabric's administrator",
}
# Directories outside the default PATH: Bottlerocket, Google's installer and Flatcar have the
# programs there if the driver root is /.
MORE_DIRS = ("/usr/libexec/nvidia/tesla/bin", "/usr/local/nvidia/bin", "/opt/bin")
S_IXANY, S_ISUID = 0o111, 0o6000


def find_binaries(tree: Tree, roots: Roots, findings: Findings) -> list[DriverFile]:
    """Return the programs, each from the first directory of the default PATH that has it."""
    real = {path: tree.directory(path) for path in (*DEFAULT_PATH_DIRS, *MORE_DIRS)}
    directories = {path: folder for path, folder in real.items() if folder is not None}
    files = []
    for name, capability in PROGRAMS:
        program = _first(tree, directories, name, findings)
        if program is None:
            continue
        # A link (Debian's alternatives) is mounted at its own name.
        files.append(
            DriverFile(
                host_path=tree.host_path(program.real),
                container_path=roots.container_path(tree.host_path(program.path)),
                reason="program of the driver",
                kind="binary",
                capability=capability,
            )
        )
    for directory in dict.fromkeys(directories.values()):
        present = tree.name_set(directory)
        for name, reason in LEFT_OUT.items():
            if name in present:
                findings.leave_out(tree.host_path(join(directory, name)), reason)
    if not any(file.container_path.endswith("/nvidia-smi") for file in files):
        findings.note(f"{tree.host_root} has no nvidia-smi")
    return files


def _first(
    tree: Tree, directories: dict[str, str], name: str, findings: Findings
) -> TreeFile | None:
    """Return a program at its path in the first directory that has it.

    A script there starts the driver's own program, which a container would lack: that program is
    returned at the script's path.
    """
    first = None
    for directory, real in directories.items():
        program = tree.file_in(real, name)
        if program is None or (first and program.real == first.real):
            continue
        path = tree.host_path(program.real)
        if not program.mode & S_IXANY:
            findings.leave_out(path, "not executable")
        elif program.mode & S_ISUID:
            findings.leave_out(path, "setuid or setgid")
        elif driver_names.is_safe(path):
            first = first or program._replace(path=join(directory, name))
            if _is_elf(tree, program.real):
                return program._replace(path=first.path)
    return first


def _is_elf(tree: Tree, path: str) -> bool:
    try:
        tree.headers(path)
    except (NvctError, OSError):
        return False
    return True
