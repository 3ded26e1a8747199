# SPDX-License-Identifier: Apache-2.0
"""What the agent and its device plugin serve on /metrics, with a sample of every metric."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from nvct.agent.device_plugin.counts import Counts
from nvct.agent.device_plugin.task import DevicePlugin
from nvct.agent.status import Status
from nvct.agent.tasks import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvct.agent.exposition import Family

RESOURCE = "nvidia.com/gpu"


def families() -> Iterator[Family]:
    """Yield the metrics of an agent that runs a device plugin."""
    plugin = Task("device-plugin", lambda: asyncio.sleep(0), metrics=_device_plugin)
    return Status([plugin], nvml_problem=lambda: "", part="serving").metrics()


def _device_plugin() -> Iterator[Family]:
    counts = Counts()
    for each in (counts.allocations, counts.refusals, counts.registrations, counts.failures,
                 counts.losses, counts.xids):  # fmt: skip
        each[RESOURCE] = 1
    content = SimpleNamespace(unhealthy=("b",), resource=SimpleNamespace(devices=("a", "b")))
    endpoint = SimpleNamespace(content=content)
    registration = SimpleNamespace(name=RESOURCE, state="listed", endpoint=endpoint)
    plugin: Any = SimpleNamespace(registrations={RESOURCE: registration}, _counts=counts)
    return DevicePlugin.metrics(plugin)
