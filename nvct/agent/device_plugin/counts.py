# SPDX-License-Identifier: Apache-2.0
"""The device plugin's counters, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from nvct.agent.web.exposition import Family, family

PREFIX = "nvct_device_plugin"
Counts: TypeAlias = Counter[tuple[str, str]]
"""Counts since the start of the program, by a name of HELP and the name of a resource."""
HELP = {
    "allocations": "Containers that got devices.",
    "allocation_errors": "Requests that were refused.",
    "registrations": "Registrations with the kubelet.",
    "registration_errors": "Registrations that failed.",
    "losses": "Times that the kubelet lost the resource.",
    "xid_devices": "Devices that an XID error made unhealthy.",
}


def families(counts: Counts) -> Iterator[Family]:
    """Yield a metric for each name of HELP."""
    for name, help_text in HELP.items():
        rows = [
            (count, {"resource": resource})
            for (counted, resource), count in sorted(counts.items())
            if counted == name
        ]
        yield family(f"{PREFIX}_{name}_total", help_text, rows)
