# SPDX-License-Identifier: Apache-2.0
"""Makes the condition nvct.dev/GPUReady of a Node from the agent's /status.

Contract: pure functions. Source of the fields: Kubernetes' API reference, NodeCondition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from nvct.doctor import agent_status
from nvct.doctor.reasons import Reason

Object: TypeAlias = dict[str, Any]

TYPE = "nvct.dev/GPUReady"
MANAGER = "nvct-health"  # The field manager of server-side apply
READY = "GPUsAreOffered"
"""The reason if there is no fault; a fault has its reason in the catalogue (docs/reasons.md)."""
MESSAGE_LIMIT = 1024  # Characters, the same as the kubelet's limit of an Event's message


@dataclass(frozen=True, slots=True)
class Condition:
    """The status, reason and message of the condition."""

    is_ready: bool
    reason: str
    message: str

    @property
    def is_planned(self) -> bool:
        """Return whether the fault ends without anybody's help."""
        return self.reason in (Reason.DeviceWithheld.name, Reason.DriverBeingReplaced.name)

    @property
    def status(self) -> str:
        """Return the status as in the API: True or False."""
        return str(self.is_ready)

    def to_dict(self, since: str, now: str) -> Object:
        """Return the condition as in the API, of now, with its status since a time (RFC 3339)."""
        return {
            "type": TYPE,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": since,
            "lastHeartbeatTime": now,
        }


def of(document: Mapping[str, Any], tasks: Sequence[str]) -> Condition | None:
    """Return the condition of a node, from /status of its agent; None if it has no GPU.

    `tasks`: those that offer its GPUs.
    """
    first, *_ = agent_status.findings(document, tasks)
    if first.severity == "note":
        return None
    reason = first.reason.name if first.is_fault else READY
    texts = (first.evidence, first.to_dict()["remedy"])
    message = ". ".join(text for text in texts if text)[:MESSAGE_LIMIT]
    return Condition(first.severity != "error", reason, message)


def find(node: Object) -> Object | None:
    """Return the condition that a Node has, None if it has none."""
    conditions = node.get("status", {}).get("conditions", ())
    return next((found for found in conditions if found["type"] == TYPE), None)
