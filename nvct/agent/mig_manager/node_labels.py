# SPDX-License-Identifier: Apache-2.0
"""The labels of a Node that name a MIG configuration and show its state.

Contract: pure functions. The labels and their values are those of NVIDIA's mig-manager and of the
GPU operator. Unlike NVIDIA's, nvct makes no missing label of the operator's DaemonSets, and puts
back a label that an interrupted change has left paused.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

Object: TypeAlias = dict[str, Any]
State: TypeAlias = Literal["pending", "rebooting", "success", "failed"]

MANAGER = "nvct-mig"
CONFIG = "nvidia.com/mig.config"
STATE = f"{CONFIG}.state"
REASON = "nvct.dev/mig.config.reason"  # The annotation with the sentence why the state is failed
DEPLOY = tuple(
    f"nvidia.com/gpu.deploy.{name}"
    for name in (
        "device-plugin", "gpu-feature-discovery", "dcgm-exporter", "dcgm", "nvsm", "client",
    )
)  # fmt: skip
"""Labels that the GPU operator's DaemonSets select; their pods have GPUs open."""
OWN = "nvidia.com/gpu.deploy.client"  # The one that the agent's own pod can select
DEPLOYED, PAUSED = "true", "paused-for-mig-change"
REASON_LIMIT = 1024


def wanted(node: Object) -> str:
    """Return the name of the configuration that a Node asks for, "" if it asks for none."""
    return str(_labels(node).get(CONFIG, ""))


def state(node: Object) -> str:
    """Return the state that a Node shows, "" if it shows none."""
    return str(_labels(node).get(STATE, ""))


def reason(node: Object) -> str:
    """Return why a Node shows the state failed, "" if it does not."""
    return str((node["metadata"].get("annotations") or {}).get(REASON) or "")


def can_pause(node: Object) -> bool:
    """Return whether a Node has DaemonSets of the operator that a label can pause."""
    return any(_labels(node).get(key) in (DEPLOYED, PAUSED) for key in DEPLOY)


def patch(
    node: Object, shown: State | None, reason: str, *, pauses: bool, spares_own: bool = False
) -> Object:
    """Return the merge patch of a Node's metadata, {} if nothing has to change.

    Args:
        shown: the state to show; None keeps the shown one.
        pauses: whether to pause the operator's DaemonSets; else they are resumed.
        spares_own: whether the label OWN stays, because pausing it would end this process.
    """
    labels = _labels(node)
    before, after = (DEPLOYED, PAUSED) if pauses else (PAUSED, DEPLOYED)
    keys = [key for key in DEPLOY if not (spares_own and key == OWN)]
    new = {key: after for key in keys if labels.get(key) == before}
    if shown is not None and labels.get(STATE) != shown:
        new[STATE] = shown
    found: Object = {"labels": new} if new else {}
    annotations = node["metadata"].get("annotations") or {}
    text = reason[:REASON_LIMIT] or None
    if shown is not None and annotations.get(REASON) != text:
        found["annotations"] = {REASON: text}
    return found


def leaving(node: Object) -> Object:
    """Return the merge patch that removes state and reason, and resumes paused DaemonSets."""
    found = patch(node, None, "", pauses=False)
    if STATE in _labels(node):
        found.setdefault("labels", {})[STATE] = None
    if REASON in (node["metadata"].get("annotations") or {}):
        found["annotations"] = {REASON: None}
    return found


def _labels(node: Object) -> Object:
    return node["metadata"].get("labels") or {}
