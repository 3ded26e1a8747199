# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this node, for their healing: who has one open, what is reset with it, its reset.

It is `nvct reset`, by the agent: the process that has NVML closes it, looks for others that have
the GPU open, and resets it only if there are none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from nvct.agent.core.instance import FOLDER
from nvct.agent.heal.machine import reset_group
from nvct.agent.heal.settings import GROUP_ENV
from nvct.agent.machine.driver_root import machine_roots
from nvct.agent.mig_manager.work import AgentSession, machine_of
from nvct.agent.nvml.client import NvmlClient
from nvct.mig.smi import find_gpus, reset_gpus


class Gpus:
    """The GPUs; what NVML or the host refuses raises NvctError."""

    def __init__(self, client: NvmlClient, env: Mapping[str, str], *, groups: bool) -> None:
        self._client, self._groups = client, groups
        self._session = AgentSession(client, machine_roots(env))
        self._machine = machine_of(client, self._session, FOLDER)

    async def together(self, gpu: str) -> tuple[tuple[str, ...], str]:
        """Return the GPUs that are reset with one, by UUID, and why they are not, "" if they are.

        Where a reset is refused, the GPU is alone.
        """
        report = await self._client.report()
        for each in report.gpus:
            if each.uuid == gpu and each.mig_enabled:
                return (gpu,), "it is in MIG mode, and a reset would remove its MIG devices"
        attributes = await self._client.attributes()
        compute = {uuid: each.compute for uuid, each in attributes.items()}
        group = reset_group(gpu, compute, (await self._client.topology()).links)
        if not group:
            return (gpu,), "it is not known which GPUs have to be reset together"
        if len(group) > 1 and not self._groups:
            return (gpu,), f"{len(group)} GPUs have to be reset together: see {GROUP_ENV}"
        return group, ""

    async def holders(self, gpus: Sequence[str]) -> tuple[str, ...]:
        """Return which processes have GPUs open, but NVML's own."""
        self._session.begin()

        def look() -> tuple[str, ...]:
            found = find_gpus(self._machine.session.mig().gpus, gpus)
            return tuple(map(str, self._machine.holders(found)))

        return await asyncio.to_thread(look)

    async def reset(self, gpus: Sequence[str]) -> None:
        """Reset GPUs together."""
        self._session.begin()
        await asyncio.to_thread(partial(reset_gpus, self._machine, gpus, wait_s=0.0))
