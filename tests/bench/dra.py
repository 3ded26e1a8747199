# SPDX-License-Identifier: Apache-2.0
"""The DRA driver on simulated nodes: how long a prepare takes, and what an idle node writes.

`python -m tests.bench dra` measures it alone; it needs no root. The driver answers over gRPC as for
a kubelet; the API server is one of the tests, in this process, so its own time is left out. The
journal is on the disk of the temporary folder. Nothing is asserted.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from nvct.agent.dra.devices import DRIVER
from nvct.agent.machine.discovery import Discovery
from nvct_sim import tree
from tests.support.nvml_node import CACHE
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.dra.fake_api import FakeApi
from tests.unit.agent.dra.fake_kubelet import FakeKubelet
from tests.unit.agent.dra.test_task import allocate, driver, offered
from tests.unit.agent.machines import discovery

IDLE_S = float(os.environ.get("NVCT_BENCH_IDLE_S", "20"))
CASES = {
    "a GPU of 8": ("hgx-h100", "gpu-0", 500),
    "a MIG device, made and destroyed": ("mixed", "gpu-1-mig-1g10gb-19-0", 50),
}
"""The title of a row: profile of the node, the device of each claim, and how many claims."""
CROWD, GPUS = 20, 4
SMALL = "gpu-{}-mig-1g10gb-19-{}"


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
    _at_once(work)
    return 0


def _at_once(work: Path) -> None:
    """Print how long the last of many claims waits that begin together, beside the slowest alone."""
    node = tree.create("bench", "hgx-h100", work / "dra", nodes="plain", native_cache=CACHE)
    try:
        with discovery(node) as machine, tempfile.TemporaryDirectory(dir="/tmp") as folder:
            (Path(folder) / "registry").mkdir()
            alone, together = asyncio.run(_crowd(machine, Path(folder)))
    finally:
        tree.destroy(node)
    print(
        f"  {CROWD} MIG devices, of {GPUS} GPUs: slowest alone {max(alone):.0f} ms; "
        f"all at once, the last after {max(together):.0f} ms"
    )


async def _crowd(machine: Discovery, folder: Path) -> tuple[list[float], list[float]]:
    api, kubelet = FakeApi(), FakeKubelet(f"{folder}/registry")
    gpus = (await machine.inventory()).gpus[:GPUS]
    for gpu in gpus:
        await machine.nvml.call("mig_set_mode", object, {"uuid": gpu.uuid, "enabled": True})
    async with driver(api, machine, folder, mig="on-demand"):
        await kubelet.register()
        devices = [SMALL.format(n % GPUS, n // GPUS) for n in range(CROWD)]
        await until(lambda: set(devices) <= set(offered(api)))
        claims = [allocate(api, f"c{n}", device) for n, device in enumerate(devices)]
        alone = []
        for claim in claims:
            alone.append(await _timed(kubelet.prepare(claim)))
            await kubelet.unprepare(claim)
        return alone, await asyncio.gather(*(_timed(kubelet.prepare(one)) for one in claims))


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


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
