# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a device plugin offers, or pods have of one: the driver does not offer those.

The kubelet is asked, by its service for pods' resources; so it does not matter which program's
plugin it is, and a GPU of a pod that started before a switch stays that pod's.
"""

from __future__ import annotations

import os

from nvct.agent.config_file import PREFIX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.dra.devices import Offer
    from nvct.agent.kubelet.pod_resources import PodResources

SEPARATOR = "::"
"""Between a UUID and the number of a replica."""


class Classic:
    """The device plugins of this node."""

    def __init__(self, socket: str) -> None:
        """Ask the kubelet on a socket; where it is missing, there is no device plugin."""
        self._socket = socket
        self._pods: PodResources | None = None

    async def uuids(self) -> frozenset[str]:
        """Return the UUIDs of GPUs and MIG devices that device plugins have.

        Raises:
            HostError: the kubelet does not answer.
        """
        if not os.path.exists(self._socket):  # noqa: ASYNC240 - a stat of a local file
            return frozenset()
        if self._pods is None:
            from nvct.agent.kubelet.pod_resources import PodResources

            self._pods = PodResources(self._socket)
        offered = await self._pods.allocatable()
        ids = [id_ for name, of_it in offered.items() if name.startswith(PREFIX) for id_ in of_it]
        for holding in await self._pods.holdings():
            if holding.resource.startswith(PREFIX):
                ids += holding.devices
        return frozenset(id_.partition(SEPARATOR)[0] for id_ in ids)

    async def close(self) -> None:
        """Close the connection."""
        if self._pods is not None:
            await self._pods.close()


def without(offer: Offer, classic: frozenset[str]) -> Offer:
    """Return the devices that share no GPU with a device plugin."""
    taken = {device.gpu for device in offer.devices if device.uuid in classic} | classic
    return offer.of_gpus({device.gpu for device in offer.devices} - taken)
