# SPDX-License-Identifier: Apache-2.0
"""Durations as Go writes them: 60s, 1m30s, 1.5h (package time, ParseDuration)."""

from __future__ import annotations

import math
import re

from nvct.errors import UsageError

INFINITE = "infinite"
UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
LONGEST_S = (2**63 - 1) / 1e9
"""Go counts nanoseconds in 64 bits; a longer duration is refused there."""


def seconds(text: str) -> float:
    """Return a duration in seconds, `math.inf` for infinite.

    Raises:
        UsageError: the text is no duration.
    """
    if text == INFINITE:
        return math.inf
    unsigned = text.removeprefix("+")
    if unsigned in ("0", "-0"):
        return 0.0
    parts = PART.findall(unsigned)
    total = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    is_whole = "".join(f"{number}{unit}" for number, unit in parts) == unsigned
    if not parts or not is_whole or total > LONGEST_S:
        raise UsageError(
            f"the interval {text!r} is no duration", hint="e.g. 60s, 1m30s, or infinite"
        )
    return total
