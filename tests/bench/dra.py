# SPDX-License-Identifier: Apache-2.0
"""The DRA driver on simulated nodes: how long a prepare takes, and what an idle node writes.

`python -m tests.bench dra` measures it alone; it needs no root. The driver answers over gRPC as for
a kubelet; the API server is one of the tests, in this process, so its own time is left out. The
journal is on the disk of the temporary folder. Nothing is asserted.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from nvct.agent.dra.devices import DRIVER
from nvct_sim import tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import FakeApi
from tests.unit.agent.dra.fake_kubelet import FakeKubelet
from tests.unit.agent.dra.test_task import allocate, driver, offered
from tests.unit.agent.machines import discovery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvct.agent.machine.discovery import Discovery

IDLE_S = float(os.environ.get("NVCT_BENCH_IDLE_S", "20"))
CASES = {
    "a GPU of 8": ("hgx-h100", "gpu-0", 500),
    "a MIG device, made and destroyed": ("mixed", "gpu-1-mig-1g10gb-19-0", 50),
}
"""The title of a row: profile of the node, the device of each claim, and how many claims."""


def measure(work: Path) -> int:
    """Measure all cases and print a table; return the exit status."""
    table = Table(title="DRA driver", box=box.SIMPLE_HEAD, title_justify="left")
    columns = ("prepare, ms", "p50", "p99", "unprepare p50", "slices written in an idle hour")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for title, (profile, device, count) in CASES.items():
        node = tree.create("bench", profile, work / "dra", nodes="plain", native_cache=CACHE)
        try:
            with discovery(node) as machine, tempfile.TemporaryDirectory(dir="/tmp") as folder:
                (Path(folder) / "registry").mkdir()
                row = asyncio.run(_case(machine, Path(folder), device, count))
        finally:
            tree.destroy(node)
        table.add_row(title, *row)
    Console().print(table)
    return 0


async def _case(machine: Discovery, folder: Path, device: str, count: int) -> tuple[str, ...]:
    api, kubelet = FakeApi(), FakeKubelet(f"{folder}/registry")
    async with driver(api, machine, folder, mig="on-demand"):
        info = await kubelet.register()
        assert info.name == DRIVER
        await until(lambda: device in offered(api))
        prepares, unprepares = [], []
        for number in range(count):
            claim = allocate(api, f"c{number}", device)
            began = time.perf_counter()
            await kubelet.prepare(claim)
            done = time.perf_counter()
            await kubelet.unprepare(claim)
            prepares.append((done - began) * 1000)
            unprepares.append((time.perf_counter() - done) * 1000)
        before = len(api.writes)
        await asyncio.sleep(IDLE_S)
        hourly = (len(api.writes) - before) * 3600 / IDLE_S
    p99 = statistics.quantiles(prepares, n=100)[98]
    return (
        f"{statistics.median(prepares):.1f}", f"{p99:.1f}",
        f"{statistics.median(unprepares):.1f}", f"{hourly:.0f}",
    )  # fmt: skip
