# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys the MIG devices of claims: each is a GPU instance with one compute instance.

A MIG device is identified by its place, because its ids and its UUID differ after each boot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import NoneType
from typing import TypeAlias

from nvct.agent.core.logs import Log
from nvct.agent.dra.devices import Place
from nvct.agent.dra.journal import Entry, Prepared
from nvct.agent.dra.mig_devices import instance_at
from nvct.agent.nvml import mig_verbs
from nvct.agent.nvml.client import NvmlClient
from nvct.errors import HostError
from nvct.host.nvml.mig_model import GpuInstance, MigGpu
from nvct.host.roots import Roots
from nvct.oci.jsontext import Json

Key: TypeAlias = tuple[str, int, int, int]
"""UUID of the GPU, profile, first memory slice, number of memory slices."""
Uuids: TypeAlias = Mapping[Key, str]
"""The UUIDs of MIG devices."""
Arguments: TypeAlias = Mapping[str, Json]


class Instances:
    """Makes and destroys MIG devices; NvctError if NVML refuses."""

    def __init__(
        self,
        nvml: NvmlClient,
        look: Callable[[], Awaitable[Mapping[tuple[str, int], str]]],
        log: Log,
    ) -> None:
        # look: makes missing device nodes, looks at the machine, and returns the UUIDs of MIG
        # devices by the UUID of the GPU and the id of the GPU instance.
        self._nvml = nvml
        self._look = look
        self._log = log
        self._looking = asyncio.Lock()
        self._looks = 0
        self._seen: tuple[int, Uuids] = 0, {}

    async def make(self, gpu: str, place: Place) -> None:
        """Make the MIG device at a place if it is missing, on a GPU in MIG mode."""
        state = await self._state(gpu)
        if state is None or not state.enabled:
            raise HostError(
                f"GPU {gpu} is not in MIG mode", hint="run nvidia-smi -i GPU -mig 1 on the node"
            )
        instance = instance_at(state, place)
        gi = instance.id if instance else await self._make(gpu, place)
        if instance is None or not instance.compute:
            arguments: Arguments = {"uuid": gpu, "gi": gi, "kind": place.compute, "engine": 0}
            await self._nvml.call("mig_create_compute", int, arguments)

    async def destroy(self, gpu: str, place: Place) -> None:
        """Destroy the MIG device at a place if it exists, even while the driver is released."""
        with self._nvml.ending():
            state = await self._state(gpu)
            instance = instance_at(state, place) if state else None
            if instance is not None:
                await self._destroy(gpu, instance)
                self._log.info(f"destroyed GPU instance {instance.id} of {gpu}")

    async def uuids(self) -> Uuids:
        """Look at the machine, and return the UUIDs of MIG devices that have device nodes.

        One look serves all callers that asked before it began.
        """
        asked = self._looks
        async with self._looking:
            if self._seen[0] <= asked:
                self._looks = number = self._looks + 1
                self._seen = number, await self._look_at_all()
            return self._seen[1]

    async def _look_at_all(self) -> Uuids:
        gpus, uuids = (await self._nvml.mig()).gpus, await self._look()
        return {
            (gpu.uuid, instance.kind, *instance.placement): uuids[gpu.uuid, instance.id]
            for gpu in gpus
            for instance in gpu.instances
            if (gpu.uuid, instance.id) in uuids
        }

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


def key(gpu: str, place: Place) -> Key:
    """Return the key of the MIG device at a place."""
    return gpu, place.kind, place.start, place.size


def with_uuids(claim: Prepared, there: Uuids) -> Prepared:
    """Return a claim with the UUIDs of its MIG devices; HostError if one is missing."""
    return replace(claim, entries=tuple(_with_uuid(entry, there) for entry in claim.entries))


def _with_uuid(entry: Entry, there: Uuids) -> Entry:
    if entry.place is None:
        return entry
    uuid = there.get(key(entry.gpu, entry.place))
    if uuid is None:
        raise HostError(
            f"GPU {entry.gpu} has no MIG device with device nodes at memory slice "
            f"{entry.place.start} now"
        )
    return replace(entry, uuid=uuid)


async def make_nodes(nvml: NvmlClient, roots: Roots) -> None:
    """Make missing nodes of MIG devices, in this process or the worker; NvctError if it fails."""
    if nvml.chooses_library:
        await asyncio.to_thread(mig_verbs.make_nodes, roots)
    else:
        await nvml.call(mig_verbs.NODES, NoneType, {})
