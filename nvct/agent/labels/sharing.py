# SPDX-License-Identifier: Apache-2.0
"""Labels of a resource that sharing determines: product, replicas, strategy."""

from __future__ import annotations

from nvct.agent.core.config_file import MPS, PREFIX, Sharing
from nvct.agent.labels.facts import Facts, Labels, joined, sanitized
from nvct.errors import HostError

NONE = "none"
SHARED = "SHARED"
"""Appended to the product of a shared resource that keeps its name."""


def labels(key: str, resource: str, model: str, sharing: Sharing | None, *suffixes: str) -> Labels:
    """Return the labels of a resource.

    Args:
        key: what its labels begin with, e.g. nvidia.com/gpu.
    """
    rules = [rule for rule in sharing.replicas if rule.name == resource] if sharing else []
    rule = rules[0] if rules else None
    if rule and not rule.rename:
        suffixes = (*suffixes, SHARED)
    return {
        f"{key}.product": joined(sanitized(model), *suffixes),
        f"{key}.replicas": str(rule.replicas if rule else 1),
        f"{key}.sharing-strategy": sharing.strategy if rule and sharing else NONE,
    }


def capability(facts: Facts, sharing: Sharing | None) -> Labels:
    """Return the label that says whether GPUs are shared by MPS.

    Raises:
        HostError: they are, and one of them is in MIG mode.
    """
    uses_mps = sharing is not None and sharing.strategy == MPS
    if uses_mps and any(gpu.mig_enabled for gpu in facts.gpus):
        raise HostError(
            "MPS sharing is not supported for mig devices",
            hint="share them by sharing.timeSlicing, or switch MIG mode off",
        )
    return {f"{PREFIX}mps.capable": str(uses_mps).lower()}
