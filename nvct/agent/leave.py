# SPDX-License-Identifier: Apache-2.0
"""Takes back what the agent gave Kubernetes, before nvct is removed from a node.

Called by another process than the agent, which is asked to yield: it withdraws its resources from
the kubelet, and does nothing more until its pod is removed.
"""

from __future__ import annotations

import asyncio
import glob
import os

from nvct.agent.device_plugin.settings import VENDOR
from nvct.agent.instance import FOLDER, LOCK, Instance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CDI_FOLDER = "/run/cdi"
"""/var/run/cdi by a name without a link, which would lead into this container."""


def leave(host_root: str, env: Mapping[str, str]) -> list[str]:
    """End the service of the agent of this host, and remove its files; return what was removed.

    Args:
        host_root: where the host's root is mounted.
        env: with NODE_NAME, the labels of that Node are removed, too.

    Raises:
        HostError: the agent does not yield, or the labels cannot be removed.
    """
    root = host_root.rstrip("/") if os.path.isdir(host_root) else ""
    removed = []
    folder = f"{root}{FOLDER}"
    if os.path.exists(f"{folder}/{LOCK}"):
        instance = Instance(folder)
        asyncio.run(instance.take())
        # Before the lock is released: an agent that stands by cannot take one that is gone.
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
        instance.release()
        removed.append("the agent serves this node no more")
    for path in sorted(glob.glob(f"{root}{CDI_FOLDER}/{VENDOR}-*.json")):
        os.unlink(path)
        removed.append(f"removed {path.removeprefix(root)}")
    if node := env.get("NODE_NAME", ""):
        asyncio.run(_remove_labels(node, env))
        removed.append(f"removed the labels of Node {node}")
    return removed


async def _remove_labels(node: str, env: Mapping[str, str]) -> None:
    from nvct.agent import cluster
    from nvct.agent.labels.outputs import OwnNode

    output = OwnNode(cluster.connect("", env), node)
    try:
        await output.write({})
    finally:
        await output.close()
