# SPDX-License-Identifier: Apache-2.0
"""Finds the processes that have GPUs open, finds the GPUs to reset together, and resets them.

The agent does what `nvct reset` does: the process that has NVML closes it, looks for other
processes that have the GPU open, and resets the GPU only if there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from nvct.agent.heal.machine import OLDEST_ALONE, reset_together
from nvct.agent.machine.driver_root import machine_roots
from nvct.agent.mig_manager.work import AgentSession, machine_of
from nvct.agent.nvml.client import NvmlClient, ReleasedError
from nvct.errors import NvctError
from nvct.host.nvml import messages
from nvct.mig.holders import Holder
from nvct.mig.smi import blocking, find_gpus, reset_gpus


class Gpus:
    """The GPUs of this node; NvctError if NVML or the host refuses."""

    def __init__(self, client: NvmlClient, env: Mapping[str, str], *, groups: bool) -> None:
        self._client, self.groups = client, groups
        self._session = AgentSession(client, machine_roots(env))
        self._machine = machine_of(self._session)

    async def together(self, gpu: str) -> tuple[tuple[str, ...], str]:
        """Return the GPUs to reset together with one, and why not, see `reset_together`."""
        known = {each.uuid: each for each in (await self._client.report()).gpus}
        attributes = (await self._client.attributes()).get(gpu)
        if gpu not in known or attributes is None:
            return (gpu,), "NVML does not describe it"
        compute = attributes.compute
        # A GPU that hangs has no topology.
        links = (await self._client.topology()).links if compute < OLDEST_ALONE else ()
        return reset_together(known[gpu], compute, links, groups=self.groups)

    async def holders(
        self, gpus: Sequence[str], which: Callable[[list[Holder]], list[Holder]] = blocking
    ) -> tuple[str, ...] | None:
        """Return the processes that have GPUs open, except NVML's own; None if that is unknown.

        It is unknown for a GPU that hangs, because NVML does not describe such a GPU.

        Args:
            which: selects the processes that count.

        Raises:
            NvmlError: NVML's worker is away, or the driver is released.
        """
        self._session.begin()

        def look() -> tuple[str, ...]:
            found = find_gpus(self._machine.session.mig().gpus, gpus)
            return tuple(map(str, which(self._machine.holders(found))))

        try:
            return await asyncio.to_thread(look)
        except ReleasedError:
            raise
        except NvctError as error:
            if error.message.startswith(messages.WORKER_AWAY):
                raise
            return None

    async def reset(self, gpus: Sequence[str]) -> None:
        """Reset GPUs together."""
        self._session.begin()
        await asyncio.to_thread(partial(reset_gpus, self._machine, gpus, wait_s=0.0))
