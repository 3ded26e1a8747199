# SPDX-License-Identifier: Apache-2.0
"""Waits with a limit that can be canceled at any moment.

`asyncio.wait_for` of Python 3.11 loses a cancellation that comes as the wait ends
(github.com/python/cpython/issues/86296): the task runs on, and a wait for its end hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Delays before the next attempt: after the first failure, the second one, and so on."""


class Backoff:
    """How long until the next attempt: longer after each failure.

    `spread`: each delay is multiplied by a random number between these two, so that nodes do not
    all ask at once.
    """

    def __init__(self, longest_s: float = 60.0, spread: tuple[float, float] = (1, 1)) -> None:
        self.failures = 0
        self._longest_s, self._spread = longest_s, spread

    def next_s(self) -> float:
        """Count a failure, and return the seconds until the next attempt."""
        delay_s = min(DELAYS_S[min(self.failures, len(DELAYS_S) - 1)], self._longest_s)
        self.failures += 1
        if self._spread == (1, 1):
            return delay_s
        import random  # 0.3 MB, which a device plugin does without

        return delay_s * random.uniform(*self._spread)  # noqa: S311  no secret

    def reset(self) -> None:
        """Begin again after a success."""
        self.failures = 0


async def until_set(event: asyncio.Event, limit_s: float | None = None) -> bool:
    """Wait for an event, not longer than the limit; return whether it is set."""
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(limit_s):  # type: ignore[attr-defined]  # of Python 3.11
            await event.wait()
    return event.is_set()


def tick(period_s: float) -> float:
    """Return the seconds until the next multiple of a period by the loop's clock.

    Loops that sleep so long wake together. That saves CPU, because waking is most of the cost.
    """
    return period_s - asyncio.get_running_loop().time() % period_s


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """Return the result of some work; after the limit, cancel it and raise TimeoutError."""
    async with asyncio.timeout(limit_s):  # type: ignore[attr-defined]  # of Python 3.11
        return await work


async def together(*works: Awaitable[None]) -> None:
    """Wait for all works; raise the error of the first one that fails, after all have ended.

    All have ended also when this is canceled. A canceled `asyncio.gather` returns when the first
    work has ended; the closing loop would then cancel the others again, during their cleanup.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def unless(event: asyncio.Event, work: Awaitable[None]) -> None:
    """Wait until some work ends or an event is set; cancel the other, raise the work's error."""
    task, ends = asyncio.ensure_future(work), asyncio.create_task(event.wait())
    try:
        done, _ = await asyncio.wait([task, ends], return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            task.result()
    finally:
        task.cancel()
        ends.cancel()
        await asyncio.gather(task, ends, return_exceptions=True)
