# SPDX-License-Identifier: Apache-2.0
"""What the device plugin counts, as metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nvct.agent.web.exposition import Family, family

PREFIX = "nvct_device_plugin"
PerResource: TypeAlias = Counter[str]


@dataclass()
class Counts:
    """Counters by the name of a resource, since the start of the program."""

    allocations: PerResource = field(default_factory=Counter)
    refusals: PerResource = field(default_factory=Counter)
    registrations: PerResource = field(default_factory=Counter)
    failures: PerResource = field(default_factory=Counter)
    losses: PerResource = field(default_factory=Counter)
    xids: PerResource = field(default_factory=Counter)

    def families(self) -> Iterator[Family]:
        """Yield a metric for each counter."""
        yield _counter("allocations", "Containers that got devices.", self.allocations)
        yield _counter("allocation_errors", "Requests that were refused.", self.refusals)
        yield _counter("registrations", "Registrations with the kubelet.", self.registrations)
        yield _counter("registration_errors", "Registrations that failed.", self.failures)
        yield _counter("losses", "Times that the kubelet lost the resource.", self.losses)
        yield _counter("xid_devices", "Devices that an XID error made unhealthy.", self.xids)


def _counter(name: str, help_text: str, counted: PerResource) -> Family:
    rows = ((count, {"resource": resource}) for resource, count in sorted(counted.items()))
    return family(f"{PREFIX}_{name}_total", help_text, rows)
