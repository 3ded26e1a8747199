# SPDX-License-Identifier: Apache-2.0
"""Programs, firmware and sockets of the driver that containers get.

Contract: programs come from the driver root only. nvidia-container-toolkit v1.20 also searches
the PATH of the host, which can mix two drivers. A setuid or setgid program is left out.

Only a socket is taken as a socket, and only a directory of root as the MPS directory: anybody can
make a link in /tmp, and such a link must not choose what containers get.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat

from nvct.errors import NvctError, printable
from nvct.host import procfs
from nvct.host.driver import names as driver_names
from nvct.host.driver.libraries import Search
from nvct.host.driver.tree import Tree, TreeFile
from nvct.host.model import Capability, DriverFile, Findings
from nvct.host.roots import Roots, below, join
from nvct.paths import DEFAULT_PATH_DIRS

PROGRAMS: tuple[tuple[str, Capability], ...] = (
    ("nvidia-smi", "utility"),
    ("nvidia-debugdump", "utility"),
    ("nvidia-persistenced", "utility"),
    # In libnvidia-container's list, but not in the CDI specs of nvidia-container-toolkit v1.20.
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


def find_binaries(search: Search) -> list[DriverFile]:
    """Return the programs, each from the first directory of the default PATH that has it."""
    tree = search.tree
    real = {path: tree.directory(path) for path in (*DEFAULT_PATH_DIRS, *MORE_DIRS)}
    directories = {path: folder for path, folder in real.items() if folder is not None}
    files = []
    for name, capability in PROGRAMS:
        if program := _first(search, directories, name):
            # A link (Debian's alternatives) is mounted at its own name.
            file = DriverFile(
                host_path=search.host_path(program),
                container_path=search.container_path(program),
                reason="program of the driver",
                kind="binary",
                capability=capability,
            )
            files.append(file)
    for directory in dict.fromkeys(directories.values()):
        for name in sorted(LEFT_OUT.keys() & tree.name_set(directory)):
            search.leave_out(join(directory, name), LEFT_OUT[name])
    if not any(file.container_path.endswith("/nvidia-smi") for file in files):
        search.findings.note(f"{tree.host_root} has no nvidia-smi")
    return files


def _first(search: Search, directories: dict[str, str], name: str) -> TreeFile | None:
    """Return a program at its path in the first directory that has it.

    If that is a script, it starts the driver's own program, which a container would lack: then
    that program is returned at the script's path.
    """
    first = None
    for directory, real in directories.items():
        program = search.tree.file_in(real, name)
        if program is None or (first and program.real == first.real):
            continue
        if not program.mode & S_IXANY:
            search.leave_out(program.real, "not executable")
        elif program.mode & S_ISUID:
            search.leave_out(program.real, "setuid or setgid")
        elif driver_names.is_safe(search.host_path(program)):
            first = first or program._replace(path=join(directory, name))
            if _is_elf(search.tree, program.real):
                return program._replace(path=first.path)
    return first


def _is_elf(tree: Tree, path: str) -> bool:
    try:
        tree.headers(path)
    except (NvctError, OSError):
        return False
    return True


VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)*")
# ucodes_*.bin: since 615, the firmware of the GPU's other processors, formerly in gsp_*.bin.
NAMES = ("gsp*.bin", "ucodes_*.bin")


def directories(roots: Roots) -> list[str]:
    """Return the kernel's firmware directories in search order (kernel docs: firmware API)."""
    custom = (procfs.read_text(f"{roots.sys}/module/firmware_class/parameters/path") or "").strip()
    release = (procfs.read_text(f"{roots.proc}/sys/kernel/osrelease") or "").strip()
    # The GPU operator's driver manager writes a driver container's path as the host sees it.
    paths = [below(roots.driver_root, custom), custom] if custom.startswith("/") else []
    for folder in ("/lib/firmware/updates", "/lib/firmware"):
        paths += [f"{folder}/{release}", folder] if release else [folder]
    return list(dict.fromkeys(paths))


def find_firmware(search: Search, version: str) -> list[DriverFile]:
    """Return the firmware of a driver version; a file found in two directories occurs once."""
    files: dict[str, DriverFile] = {}
    tree = search.tree
    for folder in directories(search.roots):
        for release in tree.names(join(folder, "nvidia")):
            if release != version and VERSION.fullmatch(release):
                reason = f"firmware of driver {release}, not {version}"
                search.leave_out(join(folder, f"nvidia/{release}"), reason)
        directory = join(folder, f"nvidia/{version}")
        for name in tree.names(directory):
            path = tree.host_path(join(directory, name))
            is_gsp = any(fnmatch.fnmatch(name, pattern) for pattern in NAMES)
            target = tree.file(join(directory, name)) if is_gsp else None
            if target is None or not driver_names.is_safe(search.host_path(target)):
                search.findings.leave_out(printable(path), "not GSP firmware")
            elif target.real not in files:
                files[target.real] = DriverFile(
                    host_path=search.host_path(target),
                    container_path=search.container_path(target),
                    reason="GSP firmware",
                    kind="firmware",
                )
    return list(files.values())


SOCKETS: tuple[tuple[str, Capability], ...] = (
    ("nvidia-persistenced/socket", "utility"),
    ("nvidia-fabricmanager/socket", "utility"),
)
MPS_DIR = "tmp/nvidia-mps"


def find_sockets(roots: Roots, findings: Findings) -> list[DriverFile]:
    """Return the sockets of running daemons, from the driver root, else from the host."""
    files = []
    in_root = join(roots.driver_root, "run")
    for name, capability in SOCKETS:
        for directory in dict.fromkeys((in_root, join(roots.driver_root, "var/run"), roots.run)):
            path = join(directory, name)
            if _lstat(path, stat.S_IFSOCK):
                files.append(_socket(path, f"/run/{name}", capability))
                break
            if os.path.lexists(path):
                findings.leave_out(path, "not a socket")
    mps = join(roots.driver_root, MPS_DIR)
    if status := _lstat(mps, stat.S_IFDIR):
        if status.st_uid == 0:
            # nvidia-container-toolkit v1.20 looks for a file here, and never finds the directory.
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
