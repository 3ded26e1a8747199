# SPDX-License-Identifier: Apache-2.0
"""MIG instances as procfs shows them, and the minors of their nvidia-caps nodes.

Only NVML has the UUIDs of MIG devices. procfs shows the instances, and whether there are any, at
no cost.
"""

from __future__ import annotations

import re

from nvct.host import procfs
from nvct.host.roots import Roots

# A node with 64 GPUs has 8000 lines: one match over the text is three times as fast as one a line.
LINES = re.compile(r"^(config|monitor|gpu\d+/gi\d+(?:/ci\d+)?/access) (\d+)$", re.MULTILINE)
INSTANCE = re.compile(r"(gi|ci)(\d+)")


def minors(roots: Roots) -> dict[str, int]:
    """Return the table of mig-minors, e.g. {"gpu0/gi1/ci0/access": 13}."""
    return parse_minors(procfs.read_text(f"{roots.proc}/driver/nvidia-caps/mig-minors") or "")


def parse_minors(text: str) -> dict[str, int]:
    """Parse mig-minors; unknown lines are skipped."""
    return {name: int(minor) for name, minor in LINES.findall(text)}


def capability_directory(roots: Roots, minor: int) -> str:
    """Return the directory that lists the GPU instances of a GPU."""
    return f"{roots.proc}/driver/nvidia/capabilities/gpu{minor}/mig"


def instances(roots: Roots, minor: int) -> dict[int, list[int]]:
    """Return the compute instances of each GPU instance of a GPU."""
    directory = capability_directory(roots, minor)
    return {
        gi: _numbers("ci", procfs.list_directory(f"{directory}/gi{gi}"))
        for gi in _numbers("gi", procfs.list_directory(directory))
    }


def cap_minors(
    roots: Roots, table: dict[str, int], minor: int, gi: int, ci: int
) -> tuple[int, int] | None:
    """Return the minors of a GPU instance's and a compute instance's nodes, None if unknown."""
    pair = []
    for name in (f"gi{gi}", f"gi{gi}/ci{ci}"):
        number = table.get(f"gpu{minor}/{name}/access")
        if number is None:
            path = f"{capability_directory(roots, minor)}/{name}/access"
            match = re.search(r"^DeviceFileMinor: (\d+)$", procfs.read_text(path) or "", re.M)
            if not match:
                return None
            number = int(match[1])
        pair.append(number)
    return pair[0], pair[1]


def _numbers(kind: str, names: list[str]) -> list[int]:
    matches = (INSTANCE.fullmatch(name) for name in names)
    return sorted(int(match[2]) for match in matches if match and match[1] == kind)
