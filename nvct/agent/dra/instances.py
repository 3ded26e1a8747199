# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys the MIG devices of claims: one compute instance that fills a GPU instance.

A MIG device is known by its place on its GPU, because its ids and its UUID differ after each boot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType

from nvct.agent.core.logs import Log
from nvct.agent.dra.devices import Place
from nvct.agent.dra.mig_devices import instance_at
from nvct.agent.nvml import mig_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError
from nvct.host.nvml.mig_model import GpuInstance, MigGpu
from nvct.host.roots import Roots

Uuids = Mapping[tuple[str, int], str]


TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.oci.jsontext import Json

    Arguments = Mapping[str, Json]


class Instances:
    """The MIG devices that this driver makes."""

    def __init__(self, nvml: NvmlClient, look: Callable[[], Awaitable[Uuids]], log: Log) -> None:
        """Do nothing yet.

        Args:
            nvml: which makes them.
            look: makes missing device nodes, looks at the machine, and returns the UUIDs of MIG
                devices by the UUID of the GPU and the id of the GPU instance.
        """
        self._nvml = nvml
        self._look = look
        self._log = log

    async def ensure(self, gpu: str, place: Place) -> str:
        """Return the UUID of the MIG device at a place, which is made if it is missing.

        Raises:
            NvctError: the GPU is not there or not in MIG mode, or NVML refuses.
        """
        state = await self._state(gpu)
        if state is None or not state.enabled:
            raise HostError(
                f"GPU {gpu} is not in MIG mode", hint="nvidia-smi -i GPU -mig 1, on the node"
            )
        instance = instance_at(state, place)
        gi = instance.id if instance else await self._make(gpu, place)
        if instance is None or not instance.compute:
            arguments: Arguments = {"uuid": gpu, "gi": gi, "kind": place.compute, "engine": 0}
            await self._nvml.call("mig_create_compute", int, arguments)
        uuid = (await self._look()).get((gpu, gi))
        if uuid is None:
            raise HostError(f"the MIG device of GPU instance {gi} of {gpu} has no device nodes")
        return uuid

    async def find(self, gpu: str, place: Place) -> str:
        """Return the UUID of the MIG device at a place, which is not made.

        Raises:
            NvctError: there is none.
        """
        state = await self._state(gpu)
        instance = instance_at(state, place) if state else None
        uuid = (await self._look()).get((gpu, instance.id)) if instance else None
        if uuid is None:
            raise HostError(f"GPU {gpu} has no MIG device at memory slice {place.start} now")
        return uuid

    async def destroy(self, gpu: str, place: Place) -> None:
        """Destroy the MIG device at a place, if there is one.

        Raises:
            NvctError: NVML refuses: a process uses it.
        """
        state = await self._state(gpu)
        instance = instance_at(state, place) if state else None
        if instance is None:
            return
        await self._destroy(gpu, instance)
        self._log.info(f"destroyed GPU instance {instance.id} of {gpu}")
        await self._look()

    async def _make(self, gpu: str, place: Place) -> int:
        kind, start, size, _ = place
        arguments: Arguments = {"uuid": gpu, "kind": kind, "start": start, "size": size}
        gi = await self._nvml.call("mig_create", int, arguments)
        self._log.info(f"made GPU instance {gi} of {gpu} at memory slice {place.start}")
        return gi

    async def _destroy(self, gpu: str, instance: GpuInstance) -> None:
        for compute in instance.compute:
            one: Arguments = {"uuid": gpu, "gi": instance.id, "ci": compute.id}
            await self._nvml.call("mig_destroy_compute", NoneType, one)
        whole: Arguments = {"uuid": gpu, "gi": instance.id}
        await self._nvml.call("mig_destroy", NoneType, whole)

    async def _state(self, gpu: str) -> MigGpu | None:
        return next((one for one in (await self._nvml.mig()).gpus if one.uuid == gpu), None)


async def make_nodes(nvml: NvmlClient, roots: Roots) -> None:
    """Make the device nodes of MIG devices that lack one, here or in the container with NVML.

    Raises:
        NvctError: they cannot be made.
    """
    if nvml.chooses_library:
        await asyncio.to_thread(mig_verbs.make_nodes, roots)
    else:
        await nvml.call(mig_verbs.NODES, NoneType, {})
