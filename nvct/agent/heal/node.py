# SPDX-License-Identifier: Apache-2.0
"""Shows the state of GPUs on a Node: a taint if all have failed, a label if somebody has to act.

Contract: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from nvct.agent.kubernetes.cluster import Kind, Object
from nvct.host.faults import ACTIONS, Action

MANAGER = "nvct-heal"
TAINT = "nvct.dev/gpus-failed"
"""The taint, with effect NoSchedule, of a Node whose GPUs have all failed."""
REBOOT = Kind(
    "janitor.dgxc.nvidia.com", "v1alpha1", "RebootNode", "rebootnodes", is_namespaced=False
)
"""NVSentinel's request for a reboot (charts/janitor/crds of github.com/NVIDIA/NVSentinel)."""
REQUEST = "nvct.dev/gpu-request"
"""The label with what somebody has to do: reset, reboot or replace."""


def worst(actions: Iterable[Action]) -> Action | Literal[""]:
    """Return the strongest action, "" if there is none."""
    return max(actions, key=ACTIONS.index) if (actions := tuple(actions)) else ""


def reboot(node: Object) -> Object:
    """Return the RebootNode object for a Node; its name has the boot id, so each boot has one."""
    info, name = node["status"]["nodeInfo"], node["metadata"]["name"]
    return {
        "metadata": {"name": f"nvct-{info['bootID']}"}, "spec": {"nodeName": name, "force": False}
    }  # fmt: skip


def patch(node: Object, *, has_failed: bool, request: Action | Literal[""]) -> Object:
    """Return the merge patch of a Node as it was read, {} if nothing has to change.

    Args:
        has_failed: whether all of its GPUs have failed.
        request: the label's value, "" for none.
    """
    metadata: Object = node["metadata"]
    found: Object = {}
    if (metadata.get("labels") or {}).get(REQUEST, "") != request:
        found["metadata"] = {"labels": {REQUEST: request or None}}
    taints = node.get("spec", {}).get("taints") or []
    others = [taint for taint in taints if taint.get("key") != TAINT]
    if (len(others) < len(taints)) != has_failed:
        own = [{"key": TAINT, "effect": "NoSchedule"}] if has_failed else []
        found["spec"] = {"taints": [*others, *own]}
    if not found:
        return {}
    known = {key: metadata[key] for key in ("name", "resourceVersion")}
    return {**found, "metadata": {**found.get("metadata", {}), **known}}
