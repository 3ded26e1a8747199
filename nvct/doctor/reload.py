# SPDX-License-Identifier: Apache-2.0
"""Finds running containers that lose their GPU when systemd is reloaded. Cold; asks nobody.

`systemctl daemon-reload` gives a container's scope the devices that its unit lists. A hook that
gave it a GPU behind systemd's back did not list that. systemd keeps the units of containers in
/run/systemd (systemd.unit(5)): `transient` has them as they were made, `system.control` what was
set later.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from nvct.doctor.containers import Containers
from nvct.doctor.model import Finding, Part, count
from nvct.doctor.parts import part_of, unseen
from nvct.doctor.reasons import Reason
from nvct.host import procfs
from nvct.host.roots import Roots

SCOPE = re.compile(r"[^/]*?([0-9a-f]{64})\.scope")
STRICT = re.compile(r"^DevicePolicy=(?:strict|closed)$", re.MULTILINE)
MAJOR = 195
"""Of /dev/nvidia0: Documentation/admin-guide/devices.txt of Linux."""
LISTED = re.compile(
    rf"^DeviceAllow=(?:/dev/char/{MAJOR}:|/dev/nvidia\d|char-nvidia|char-\*|/dev/char/\*)",
    re.MULTILINE,
)
NODE = re.compile(r"nvidia\d+")


def check(roots: Roots, containers: Containers) -> Part:
    """Check that systemd knows the GPUs of each running container."""
    scopes = _scopes(roots)
    if not scopes:
        text = "no container's cgroup is a unit of systemd"
        return part_of("reload", [text], health="absent")
    if part := unseen("reload", Reason.GpuLostAtReload, f"{roots.proc}/1/root"):
        return part
    lost = sorted(
        name
        for id_, name in _with_gpu(roots, containers)
        if id_ in scopes and STRICT.search(scopes[id_]) and not LISTED.search(scopes[id_])
    )
    if not lost:
        return part_of("reload", [f"{count(len(scopes), 'container')}, none would lose a GPU"])
    found = [
        Finding(
            reason=Reason.GpuLostAtReload,
            severity="warning",
            evidence=f"container {name} has a GPU that its systemd unit does not list",
        )
        for name in lost
    ]
    return part_of("reload", [finding.evidence for finding in found], found)


def _scopes(roots: Roots) -> dict[str, str]:
    """Return the text of each container's unit, by the container's id."""
    texts: dict[str, str] = {}
    for path in sorted(glob.glob(f"{roots.run}/systemd/transient/*.scope")):
        if match := SCOPE.fullmatch(os.path.basename(path)):
            more = (
                procfs.read_text(each) or ""
                for folder in ("transient", "system.control")
                for each in sorted(glob.glob(f"{roots.run}/systemd/{folder}/{match[0]}.d/*.conf"))
            )
            texts[match[1]] = "\n".join([procfs.read_text(path) or "", *more])
    return texts


def _with_gpu(roots: Roots, containers: Containers) -> Iterator[tuple[str, str]]:
    """Yield id and name of each container that has the node of a GPU."""
    seen = set()
    for name in procfs.list_directory(roots.proc):
        id_ = containers.id_of(int(name)) if name.isdecimal() else ""
        if not id_ or id_ in seen:
            continue
        seen.add(id_)
        nodes = procfs.list_directory(f"{roots.proc}/{name}/root/dev")
        if any(NODE.fullmatch(node) for node in nodes):
            yield id_, containers.name_of_process(int(name))
