# SPDX-License-Identifier: Apache-2.0
"""What a Node shows of its GPUs: a taint if all have failed, a label if somebody has to act.

Contract: pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from nvct.host.faults import ACTIONS, Action

Object: TypeAlias = dict[str, Any]

MANAGER = "nvct-heal"
TAINT = "nvct.dev/gpus-failed"
"""With effect NoSchedule: all GPUs of the Node have failed."""
REQUEST = "nvct.dev/gpu-request"
"""The label: reset, reboot or replace, what somebody else has to do."""


def worst(actions: Iterable[Action]) -> str:
    """Return the action that asks for most, "" if there is none."""
    return max(actions, key=ACTIONS.index, default="")


def patch(node: Object, *, has_failed: bool, request: str) -> Object:
    """Return the merge patch of a Node, {} if nothing has to change.

    Args:
        has_failed: whether all its GPUs have.
        request: the label's value, "" for none.
    """
    found: Object = {}
    labels = node["metadata"].get("labels") or {}
    if labels.get(REQUEST, "") != request:
        found["metadata"] = {"labels": {REQUEST: request or None}}
    taints = node.get("spec", {}).get("taints") or []
    others = [taint for taint in taints if taint.get("key") != TAINT]
    if (len(others) < len(taints)) != has_failed:
        own = [{"key": TAINT, "effect": "NoSchedule"}] if has_failed else []
        found["spec"] = {"taints": [*others, *own]}
    return found
