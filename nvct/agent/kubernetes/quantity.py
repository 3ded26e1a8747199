# SPDX-License-Identifier: Apache-2.0
"""Numbers as Kubernetes writes them: 1k for 1000, 80Gi.

The API server shortens each number that it can, also the devices of a node. Contract: pure
functions. Source: kubernetes.io, "Quantity".
"""

from __future__ import annotations

import re

QUANTITY = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?([kMGTPE]i?|Ki|[eE]\d{1,2}|)")
UNITS: dict[str, int] = {"": 1, "k": 10**3} | {
    f"{letter}{binary}": (1024 if binary else 1000) ** power
    for power, letter in enumerate("KMGTPE", 1)
    for binary in ("", "i")
}


def parse(text: str) -> float | None:
    """Return the number of a quantity such as 80Gi; None if it is malformed."""
    match = QUANTITY.fullmatch(text)
    if match is None:
        return None
    unit = UNITS[match[3]] if match[3] in UNITS else 10 ** int(match[3][1:])
    return float(f"{match[1]}.{match[2]}") * unit if match[2] else int(match[1]) * unit


def count(value: object) -> int:
    """Return a number of devices, which has no fraction; 0 if it is malformed."""
    return int(parse(str(value)) or 0)
