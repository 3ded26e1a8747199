# SPDX-License-Identifier: Apache-2.0
"""What the agent, its device plugin and its health engine serve, with a sample of every metric."""

import asyncio
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvct.agent.core.logs import Log
from nvct.agent.core.status import Status
from nvct.agent.core.task import KeptTask
from nvct.agent.device_plugin.counts import HELP, Counts
from nvct.agent.device_plugin.served import ServedResources
from nvct.agent.device_plugin.task import DevicePlugin
from nvct.agent.dra.settings import Settings as DraSettings
from nvct.agent.dra.task import DraDriver
from nvct.agent.health import settings
from nvct.agent.health.board import Key
from nvct.agent.health.engine import HealthEngine
from nvct.agent.health.machine import Health
from nvct.agent.web.exposition import Family
from nvct.host.roots import Roots

RESOURCE = "nvidia.com/gpu"


def families(folder: Path) -> Iterator[Family]:
    """Yield the metrics of an agent that runs a device plugin and a DRA driver."""
    plugin: Any = SimpleNamespace(metrics=_device_plugin)
    made: dict[str, Any] = {"device-plugin": plugin, "dra": _dra_driver(folder)}
    tasks = [KeptTask(name, lambda: asyncio.sleep(0), partial(made.get, name)) for name in made]
    return Status(tasks, nvml_problem=lambda: "", part="serving").metrics()


def _health() -> HealthEngine:
    return HealthEngine(settings.resolve("auto", "", "", {}), Log(target=io.StringIO()))


def _dra_driver(folder: Path) -> DraDriver:
    of_driver = DraSettings(
        node_name="node-1", cdi_root=f"{folder}/cdi", registry=f"{folder}/registry",
        plugins=f"{folder}/plugins",
    )  # fmt: skip
    machine: Any = SimpleNamespace(
        nvml=SimpleNamespace(chooses_library=False), roots=Roots(), stat_node=None, host=None
    )
    no_cluster: Any = None
    log = Log(target=io.StringIO())
    return DraDriver(
        of_driver, machine, lambda: no_cluster, _health(), log, load=lambda: of_driver
    )


def _device_plugin() -> Iterator[Family]:
    counts = Counts((name, RESOURCE) for name in HELP)
    content = SimpleNamespace(unhealthy=("b",), resource=SimpleNamespace(devices=("a", "b")))
    endpoint = SimpleNamespace(content=content)
    registration = SimpleNamespace(name=RESOURCE, state="listed", endpoint=endpoint)
    engine = _health()
    engine._board.states[Key("GPU-b")] = Health(state="unhealthy", action="reset", reason="XID 79")
    served: Any = SimpleNamespace(current={RESOURCE: registration})
    served.metrics = lambda: ServedResources.metrics(served)
    plugin: Any = SimpleNamespace(_served=served, _counts=counts, _health=engine)
    return DevicePlugin.metrics(plugin)
