# SPDX-License-Identifier: Apache-2.0
"""Labels of the driver's version and of the CUDA version that it supports."""

from __future__ import annotations

from nvct.agent.core.config_file import PREFIX
from nvct.agent.labels.facts import Facts, Labels
from nvct.agent.labels.values import is_value

DRIVER, CUDA = f"{PREFIX}cuda.driver", f"{PREFIX}cuda.runtime"


def labels(facts: Facts) -> Labels:
    """Return the labels of both versions; one that is unknown has none."""
    labels: Labels = {}
    parts = facts.driver_version.split(".")
    if len(parts) in (2, 3) and is_value(facts.driver_version):
        major, minor, revision = (*parts, "")[:3]
        labels |= {
            f"{DRIVER}-version.full": facts.driver_version,
            f"{DRIVER}-version.major": major,
            f"{DRIVER}-version.minor": minor,
            f"{DRIVER}-version.revision": revision,
            f"{DRIVER}.major": major,
            f"{DRIVER}.minor": minor,
            f"{DRIVER}.rev": revision,
        }
    major, dot, minor = facts.cuda_version.partition(".")
    if dot:
        labels |= {
            f"{CUDA}-version.full": facts.cuda_version,
            f"{CUDA}-version.major": major,
            f"{CUDA}-version.minor": minor,
            f"{CUDA}.major": major,
            f"{CUDA}.minor": minor,
        }
    return labels
