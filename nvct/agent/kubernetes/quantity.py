# SPDX-License-Identifier: Apache-2.0
"""Numbers as Kubernetes writes them: 1k for 1000, 80Gi.

The API server shortens every number if it can, also that of a node's devices. Contract: pure
functions. Source: kubernetes.io, "Quantity".
"""

from __future__ import annotations

import re

QUANTITY = re.compile(
    r"(\d{1,18})(?:\.(\d{1,9}))?(?:[eE](?P<exponent>[-+]?\d{1,2})|(?P<unit>k|Ki|[MGTPE]i?|m|))"
)
UNITS: dict[str, float] = {"": 1, "m": 0.001, "k": 1000, "Ki": 1024} | {
    f"{letter}{binary}": (1024 if binary else 1000) ** power
    for power, letter in enumerate("MGTPE", 2)
    for binary in ("", "i")
}


def parse(text: str) -> float | None:
    """Return the number of a quantity such as 80Gi; None if it is malformed."""
    match = QUANTITY.fullmatch(text)
    if match is None:
        return None
    exponent = match["exponent"]
    unit = UNITS[match["unit"]] if exponent is None else 10 ** int(exponent)
    return float(f"{match[1]}.{match[2]}") * unit if match[2] else int(match[1]) * unit


def count(value: object) -> int:
    """Return a number of devices, which has no fraction; 0 if it is malformed."""
    return int(parse(str(value)) or 0)
