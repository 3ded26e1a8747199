# SPDX-License-Identifier: Apache-2.0
"""Measures the steps of a decision, for `nvct explain`. Cold."""

from __future__ import annotations

import time


class Clock:
    """Measures steps that follow or interrupt each other.

    Attributes:
        steps: milliseconds by step, and how a plan was had; in the order of their ends.
    """

    def __init__(self, step: str) -> None:
        self.steps: dict[tuple[str, str], float] = {}
        self.begin(step)

    def begin(self, step: str) -> None:
        """Begin a step; what was before it does not count."""
        self._step, self._since = step, time.monotonic()

    def end(self, how: str = "", *, then: str = "") -> str:
        """End the step that runs, begin another one, and return the name of the ended one."""
        key = self._step, how
        ms = (time.monotonic() - self._since) * 1000
        self.steps[key] = self.steps.pop(key, 0.0) + ms
        self.begin(then)
        return key[0]

    def to_dicts(self) -> list[dict[str, object]]:
        """Return the steps as JSON has them."""
        return [
            {"step": step, "how": how, "ms": round(ms, 3)}
            for (step, how), ms in self.steps.items()
        ]
