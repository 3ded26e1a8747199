# SPDX-License-Identifier: Apache-2.0
"""Reads in a thread what may take long, because an engine ends a plugin that takes two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

from nvct.errors import HostError

T = TypeVar("T")


class Reading(Thread, Generic[T]):
    """Reads in a thread; a caller that cannot wait gets an error, and the reading goes on."""

    def __init__(self, read: Callable[[], T], wait_s: float) -> None:
        super().__init__(daemon=True)
        self._read, self._until = read, time.monotonic() + wait_s
        self._results: list[T] = []
        self._problem: Exception | None = None
        self.start()

    def run(self) -> None:
        """Read."""
        try:
            self._results.append(self._read())
        except Exception as error:  # `result` raises it
            self._problem = error

    def result(self, late: HostError) -> T:
        """Return what was read.

        Raises:
            HostError: `late`, if reading takes longer than the wait.
            NvctError: it cannot be read.
        """
        self.join(max(0.0, self._until - time.monotonic()))
        if self.is_alive():
            raise late
        if self._problem is not None:
            raise self._problem
        return self._results[0]
