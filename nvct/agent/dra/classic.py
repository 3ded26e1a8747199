# SPDX-License-Identifier: Apache-2.0
"""Finds the GPUs that device plugins offer or have given to pods: DRA does not offer these.

It asks the kubelet's PodResources service, so any program's device plugin counts, and a pod that
started before a switch to DRA keeps its GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nvct.agent.core.config_file import PREFIX
from nvct.agent.dra.devices import DRIVER, Offer
from nvct.agent.kubelet.pod_resources import Holding, PodResources, uuid_of


class Classic:
    """The device plugins of this node.

    Attributes:
        taken: UUIDs of their GPUs and MIG devices, None before the kubelet has answered.
        claims: NAMESPACE/NAME of the claims that pods use, from the kubelet's last answer.
    """

    def __init__(self, socket: str) -> None:
        self.taken: frozenset[str] | None = None
        self.claims: frozenset[str] = frozenset()
        self._socket = socket
        self._pods: PodResources | None = None

    async def look(self) -> None:
        """Ask the kubelet which devices they offer, and which they have given to pods.

        Raises:
            HostError: the kubelet does not answer; `taken` stays.
        """
        pods = self._connected()
        if pods is None:
            self.taken = frozenset()
            return
        holdings = await pods.holdings()
        self.claims = frozenset(
            f"{holding.claim.namespace}/{holding.claim.name}"
            for holding in holdings
            if holding.claim and holding.resource == DRIVER
        )
        offered = await pods.allocatable()
        ids = [id_ for name, of_it in offered.items() if name.startswith(PREFIX) for id_ in of_it]
        self.taken = frozenset((*map(uuid_of, ids), *_holders(holdings)))

    async def holders(self) -> dict[str, str]:
        """Return the pod that has each device of a device plugin, by the UUID of the device."""
        pods = self._connected()
        return _holders(await pods.holdings() if pods else ())

    def of(self, offer: Offer) -> Offer:
        """Return the devices of GPUs that no device plugin has; none if that is not known."""
        if self.taken is None:
            return Offer()
        gpus = {device.gpu for device in offer.devices}
        taken = {device.gpu for device in offer.devices if device.uuid in self.taken}
        return offer.of_gpus(gpus - taken - self.taken)

    async def close(self) -> None:
        """Close the connection."""
        if self._pods is not None:
            await self._pods.close()

    def _connected(self) -> PodResources | None:
        if self._pods is None and os.path.exists(self._socket):
            self._pods = PodResources(self._socket)
        return self._pods


def _holders(holdings: Iterable[Holding]) -> dict[str, str]:
    return {
        uuid_of(id_): f"{holding.namespace}/{holding.pod}"
        for holding in holdings
        if holding.resource.startswith(PREFIX) and holding.claim is None
        for id_ in holding.devices
    }
