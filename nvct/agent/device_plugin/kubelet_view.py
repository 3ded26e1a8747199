# SPDX-License-Identifier: Apache-2.0
"""Compares what is offered with what the kubelet has, by its service for pods' resources.

A program that registers the same resource under another socket takes it over: the kubelet reads
its list, does not end our stream, and has no device at all when that program ends (seen on
Kubernetes 1.36). No socket of ours tells; only the kubelet does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

from nvct.agent.core.logs import Log
from nvct.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.device_plugin.registration import Registration

LOOK_S = 10.0
"""Between two questions."""


async def watch(
    kubelet: str, registrations: Callable[[], Iterable[Registration]], journal: Log
) -> None:
    """Compare until canceled; nothing is compared where the kubelet's folder is not mounted.

    Args:
        kubelet: path of the kubelet's socket for device plugins, "" without registration.
    """
    folder = os.path.dirname(os.path.dirname(kubelet))
    socket = f"{folder}/pod-resources/kubelet.sock"
    problem = ""
    asked = None
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            if not kubelet or not os.path.exists(socket):  # noqa: ASYNC240 - a stat of a local file
                continue
            if asked is None:
                from nvct.agent.kubelet.pod_resources import PodResources

                asked = PodResources(socket)
            try:
                has = await asked.allocatable()
            except HostError as error:
                if error.message != problem:
                    journal.info(f"the kubelet's own list is not known: {error.message}")
                problem = error.message
                continue
            problem = ""
            for registration in registrations():
                registration.compare(has.get(registration.name, ()))
    finally:
        if asked is not None:
            await asked.close()
