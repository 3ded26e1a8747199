# SPDX-License-Identifier: Apache-2.0
"""Firmware of the GPU's system processor (GSP), in the places where the kernel looks for it."""

from __future__ import annotations

import fnmatch

from nvct.host import procfs
from nvct.host.model import DriverFile
from nvct.host.roots import join

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.host.roots import Roots
    from nvct.host.tree import Tree


def directories(roots: Roots) -> list[str]:
    """Return the kernel's firmware directories in its order (admin-guide/kernel firmware API)."""
    custom = procfs.read_text(f"{roots.sys}/module/firmware_class/parameters/path") or ""
    release = (procfs.read_text(f"{roots.proc}/sys/kernel/osrelease") or "").strip()
    places = [custom.strip()]
    if release:
        places.append(f"/lib/firmware/updates/{release}")
    places.append("/lib/firmware/updates")
    if release:
        places.append(f"/lib/firmware/{release}")
    places.append("/lib/firmware")
    return [place for place in places if place.startswith("/")]


def find(tree: Tree, roots: Roots, version: str) -> list[DriverFile]:
    """Return gsp*.bin of a driver version; a file that two directories share is taken once."""
    files: dict[str, DriverFile] = {}
    for place in directories(roots):
        directory = join(place, f"nvidia/{version}")
        for name in tree.names(directory):
            found = tree.find(join(directory, name)) if fnmatch.fnmatch(name, "gsp*.bin") else None
            if found is None or found.real in files:
                continue
            files[found.real] = DriverFile(
                host_path=tree.host_path(found.real),
                container_path=roots.container_path(tree.host_path(found.path)),
                reason="GSP firmware",
                kind="firmware",
                capability="",
            )
    return list(files.values())
