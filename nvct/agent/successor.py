# SPDX-License-Identifier: Apache-2.0
"""Whether a newer pod of this agent's DaemonSet starts on this node, which will take over.

A DaemonSet with a surge keeps an old pod until the new one is Ready, but only if the old one is
Ready. Else it deletes the old one as soon as the new one exists, before that has been scheduled
(pkg/controller/daemon/daemon_controller.go of Kubernetes, podsShouldBeOnNode).
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterable, Mapping

from nvct.errors import HostError

POD_ENV = "KUBERNETES_SERVICE_HOST"
"""The kubelet sets it in every pod."""
POD = re.compile(r"(?P<owner>.+-)[a-z0-9]{5}")
"""The name of a DaemonSet's pod."""
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
MARGIN_S = 5
"""How much earlier than its pod must have ended an agent that serves on ends."""
LOOK_S, LOOKS = 0.25, 5
"""How often the kubelet is asked: it knows a pod when that has been scheduled."""


async def is_coming(env: Mapping[str, str], host: str, socket: str = SOCKET) -> bool:
    """Return whether the kubelet has another pod of this pod's DaemonSet.

    False also if this is no pod, or if the kubelet does not answer.

    Args:
        host: name of this host, which is a pod's name.
        socket: the kubelet's for pods' resources.
    """
    if not env.get(POD_ENV) or not os.path.exists(socket):  # noqa: ASYNC240 - a stat of a local file
        return False
    from nvct.agent.kubelet.pod_resources import PodResources

    kubelet, end = PodResources(socket), time.monotonic() + LOOKS * LOOK_S
    try:
        while not _has_other(await kubelet.pods(), host):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(LOOK_S)
        return True
    except HostError:
        return False
    finally:
        await kubelet.close()


def _has_other(pods: Iterable[str], host: str) -> bool:
    own = POD.fullmatch(host)
    others = (POD.fullmatch(name) for name in pods if name != host)
    return own is not None and any(other and other["owner"] == own["owner"] for other in others)
