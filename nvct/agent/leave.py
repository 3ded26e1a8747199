# SPDX-License-Identifier: Apache-2.0
"""Removes what the agent wrote to its host and to the Node object, before nvct is removed.

This runs in a process of its own. It asks the agent to yield: the agent withdraws its resources
from the kubelet, and does nothing more until its pod is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Mapping, Sequence
from fnmatch import fnmatchcase

from nvct.agent.core.instance import FOLDER, LOCK, Instance
from nvct.agent.device_plugin.settings import DRA_VENDOR, VENDOR
from nvct.errors import HostError
from nvct.installer import ready
from nvct.kernel.shared_folder import SharedFolder

DENIED = (403, 422)
"""HTTP statuses of a refusal by RBAC or by an admission policy: the task has been switched off."""
CDI_FOLDER = "/run/cdi"
"""/var/run/cdi without the link /var/run, which would lead into this container."""


def leave(host_root: str, env: Mapping[str, str]) -> list[str]:
    """End the agent's service on this host, and remove its files; return sentences about that.

    HostError if the agent does not yield, or the Node cannot be changed; UnsafePathError if the
    agent's folder is a link or a file. `env`: if it has NODE_NAME, what tasks wrote to that Node
    is removed, too.
    """
    root = host_root.rstrip("/") if os.path.isdir(host_root) else ""
    removed = []
    folder = f"{root}{FOLDER}"
    if os.path.lexists(f"{folder}/{LOCK}"):
        instance = Instance(folder)
        asyncio.run(instance.take(to_serve=False))
        removed.append("the agent no longer serves this node")
        # Only if there is a lock: the files of NVIDIA's plugin have the same names.
        patterns = [f"{vendor}-*.json" for vendor in (VENDOR, DRA_VENDOR)]
        names = _remove(f"{root}{CDI_FOLDER}", patterns)
        _remove(f"{root}{ready.OWN_FOLDER}", [ready.WORKER_SOCKET])
        removed += [f"removed {CDI_FOLDER}/{name}" for name in names]
        # Before the lock is released: an agent that stands by cannot take a removed lock.
        _remove(folder, ["*"])
        instance.release()
    if node := env.get("NODE_NAME", ""):
        removed += asyncio.run(_leave_node(node, env))
    return removed


def _remove(path: str, patterns: Sequence[str]) -> list[str]:
    """Remove files of a folder whose names match a pattern; return the names. Subfolders stay."""
    removed = []
    try:
        with contextlib.suppress(FileNotFoundError), SharedFolder.open(path) as folder:
            for name in folder.names():
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    with contextlib.suppress(IsADirectoryError):
                        folder.unlink(name)
                        removed.append(name)
    except OSError as error:
        raise HostError(f"{error.filename or path} cannot be removed: {error.strerror}") from error
    return removed


async def _leave_node(name: str, env: Mapping[str, str]) -> list[str]:
    """Remove what tasks wrote to a Node; return a sentence for each part, removed or refused."""
    from nvct.agent.condition import condition
    from nvct.agent.heal import node as healed
    from nvct.agent.kubernetes import cluster
    from nvct.agent.labels import outputs
    from nvct.agent.mig_manager import node_labels

    connected = cluster.connect("", env)
    sentences: list[str] = []

    async def remove(what: str, change: Awaitable[object]) -> None:
        try:
            await change
        except cluster.ClusterError as error:
            if error.status not in DENIED:
                raise
            sentences.append(f"{what} of Node {name} cannot be removed: {error.message}")
        else:
            sentences.append(f"removed {what} of Node {name}")

    try:
        node = await connected.find(cluster.NODE, name)
        if node is None:
            return []
        metadata = {"name": name, "uid": node["metadata"]["uid"]}
        managers = {entry.get("manager") for entry in node["metadata"].get("managedFields", ())}
        if outputs.MANAGER in managers:
            change = connected.apply(cluster.NODE, {"metadata": metadata}, outputs.MANAGER)
            await remove("the labels", change)
        if condition.find(node):
            status = {"metadata": metadata, "status": {"conditions": []}}
            change = connected.apply(cluster.NODE, status, condition.MANAGER, part="status")
            await remove("the condition", change)
        if node_labels.MANAGER in managers and (labels := node_labels.leaving(node)):
            patch = {"metadata": {"name": name, **labels}}
            await remove(
                "the MIG state", connected.merge(cluster.NODE, patch, node_labels.MANAGER)
            )
        if patch := healed.patch(node, has_failed=False, request=""):
            change = connected.merge(cluster.NODE, patch, healed.MANAGER)
            await remove("the label and taint of failed GPUs", change)
        return sentences
    finally:
        await connected.close()
