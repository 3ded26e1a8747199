# SPDX-License-Identifier: Apache-2.0
"""Labels of virtual GPUs: whether there are any, and the driver of their host."""

from __future__ import annotations

from nvct.agent.core.config_file import PREFIX
from nvct.agent.labels.facts import Facts, Labels
from nvct.agent.labels.values import sanitized

VGPU = f"{PREFIX}vgpu"


def labels(facts: Facts) -> Labels:
    """Return the labels; none if it is unknown whether there are vGPUs."""
    if facts.host_drivers is None:
        return {}
    labels = {f"{VGPU}.present": str(bool(facts.host_drivers)).lower()}
    for driver in facts.host_drivers[:1]:
        if driver.version:
            labels[f"{VGPU}.host-driver-version"] = sanitized(driver.version)
            labels[f"{VGPU}.host-driver-branch"] = sanitized(driver.branch)
    return labels
