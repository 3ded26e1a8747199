# SPDX-License-Identifier: Apache-2.0
"""Makes MIG devices that have failed again, when nothing uses them.

Which have failed is what the health of the GPUs says: an XID that names a GPU instance, and asks
for a reset. The other MIG devices of the GPU stay. A device that has failed too often stays out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from nvct.agent.core.logs import Log
from nvct.agent.health.engine import HealthEngine
from nvct.agent.mig_manager.pods import Pods
from nvct.agent.mig_manager.work import Work
from nvct.errors import NvctError
from nvct.mig.apply import HeldError

TIMES, WINDOW_S = 3, 3600.0
"""How often a GPU instance is made again, and in what time."""


class Renewals:
    """The MIG devices that have failed, of one machine."""

    def __init__(
        self, health: Callable[[], HealthEngine | None], work: Work, pods: Pods, log: Log
    ) -> None:
        self._health, self._work, self._pods, self._log = health, work, pods, log
        self._made: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self._problem = ""

    async def run(self, in_thread: Callable[..., Awaitable[object]]) -> None:
        """Make those again that are idle.

        Args:
            in_thread: runs a function that changes MIG.

        Raises:
            ClusterError, HostError, NvmlError: it is not known which devices pods have.
        """
        health = self._health()
        broken = health.broken_instances() if health else ()
        if health is None or not broken:
            return
        devices = await self._pods.devices()
        used = {(each.gpu, each.instance[0]) for each in devices if each.instance}
        for gpu, gi in sorted(set(broken) - used):
            if not self._may(gpu, gi):
                continue
            name = f"GPU instance {gi} of {gpu}"
            try:
                await in_thread(self._work.renew, gpu, gi)
            except HeldError as error:
                self._complain(f"{name} has failed and is in use: {error.message}")
                continue
            except NvctError as error:
                self._complain(f"{name} has failed and cannot be made again: {error.message}")
            else:
                self._log.info(f"{name} had failed: it was destroyed and made again")
                health.note_renewed(gpu, gi)
            self._made[gpu, gi].append(time.monotonic())

    def _may(self, gpu: str, gi: int) -> bool:
        now = time.monotonic()
        made = self._made[gpu, gi] = [at for at in self._made[gpu, gi] if now - at < WINDOW_S]
        if len(made) >= TIMES:
            self._complain(
                f"GPU instance {gi} of {gpu} has failed again: it was made again {TIMES} times in "
                "an hour, and stays as it is"
            )
        return len(made) < TIMES

    def _complain(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self._log.warning(text)
