# SPDX-License-Identifier: Apache-2.0
"""Names of NVIDIA's PCI devices from the machine's pci.ids, the list of the PCI ID Project."""

from __future__ import annotations

import re

from nvct.host.roots import Roots

FILES = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids", "usr/share/pci.ids")
VENDOR = "10de  "
DEVICE = re.compile(r"\t([0-9a-f]{4})  (.*)")


def names(roots: Roots) -> dict[str, str]:
    """Return the names by device number, e.g. 2330; empty if the machine has no such list."""
    for root in dict.fromkeys((roots.driver_root.rstrip("/"), "")):
        for path in FILES:
            try:
                with open(f"{root}/{path}", encoding="utf-8", errors="replace") as file:
                    return _of_vendor(file.read())
            except OSError:
                continue
    return {}


def _of_vendor(text: str) -> dict[str, str]:
    _, _, rest = text.partition(f"\n{VENDOR}")
    found: dict[str, str] = {}
    for line in rest.splitlines()[1:]:
        if line and not line.startswith(("\t", "#")):
            break  # the next vendor
        device = DEVICE.fullmatch(line)
        if device:
            found[device[1]] = device[2].strip()
    return found
