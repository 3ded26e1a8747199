# SPDX-License-Identifier: Apache-2.0
"""Firmware of the GPU's system processor (GSP), in the kernel's firmware directories."""

from __future__ import annotations

import fnmatch
import re

from nvct.errors import printable
from nvct.host import procfs
from nvct.host.driver import names as driver_names
from nvct.host.driver.tree import Tree
from nvct.host.model import DriverFile, Findings
from nvct.host.roots import Roots, below, join

VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)*")
# ucodes_*.bin: since 615, the firmware of the GPU's other processors, formerly in gsp_*.bin.
NAMES = ("gsp*.bin", "ucodes_*.bin")


def directories(roots: Roots) -> list[str]:
    """Return the kernel's firmware directories in search order (kernel docs: firmware API)."""
    custom = (procfs.read_text(f"{roots.sys}/module/firmware_class/parameters/path") or "").strip()
    release = (procfs.read_text(f"{roots.proc}/sys/kernel/osrelease") or "").strip()
    # A driver container's path is written as the host sees it: GPU operator, driver manager.
    paths = [below(roots.driver_root, custom), custom] if custom.startswith("/") else []
    if release:
        paths.append(f"/lib/firmware/updates/{release}")
    paths.append("/lib/firmware/updates")
    if release:
        paths.append(f"/lib/firmware/{release}")
    paths.append("/lib/firmware")
    return list(dict.fromkeys(paths))


def find_firmware(tree: Tree, roots: Roots, version: str, findings: Findings) -> list[DriverFile]:
    """Return the firmware of a driver version; a file found in two directories occurs once."""
    files: dict[str, DriverFile] = {}
    for folder in directories(roots):
        for release in tree.names(join(folder, "nvidia")):
            if release != version and VERSION.fullmatch(release):
                path = tree.host_path(join(folder, f"nvidia/{release}"))
                findings.leave_out(path, f"firmware of driver {release}, not {version}")
        directory = join(folder, f"nvidia/{version}")
        for name in tree.names(directory):
            path = tree.host_path(join(directory, name))
            is_gsp = any(fnmatch.fnmatch(name, pattern) for pattern in NAMES)
            target = tree.file(join(directory, name)) if is_gsp else None
            if target is None or not driver_names.is_safe(tree.host_path(target.real)):
                findings.leave_out(printable(path), "no GSP firmware")
                continue
            if target.real in files:
                continue
            files[target.real] = DriverFile(
                host_path=tree.host_path(target.real),
                container_path=roots.container_path(tree.host_path(target.path)),
                reason="GSP firmware",
                kind="firmware",
                capability="",
            )
    return list(files.values())
