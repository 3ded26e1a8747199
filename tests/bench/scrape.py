# SPDX-License-Identifier: Apache-2.0
"""The exporter on simulated nodes: scrape time, CPU, memory, series and labels.

`python -m tests.bench scrape` measures it alone; it needs no root. Times are medians; memory is
the proportional and the resident set size of all its processes. Nothing is asserted.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_client.samples import Sample
from rich import box
from rich.console import Console
from rich.table import Table

from nvct.agent.kubelet import kubelet_pb2 as api
from nvct_sim import node_changes, tree
from tests.support.processes import cpu_s, family, pss_kib
from tests.unit.agent.kubelet.test_pod_resources import kubelet

PODS = 200
SCRAPES = 50
SETTLE_S = 3.0
INTERVAL_S = 1.0
DEFAULT_INTERVAL_S = 30.0
LOAD_S = float(os.environ.get("NVCT_BENCH_IDLE_S", "20"))
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Case:
    """A node.

    Attributes:
        title: of its column.
        profile: of the simulated node.
        gpus: how many GPUs are shown; 0 for all.
        instances: MIG instances of each GPU.
        pods: of the node; as many as there are devices have one.
        words: further options.
    """

    title: str
    profile: str
    gpus: int = 0
    instances: int = 0
    pods: int = 0
    words: tuple[str, ...] = ()


CASES = (
    Case("1 GPU", "hgx-h100", gpus=1),
    Case("8 GPUs", "hgx-h100"),
    Case("16 GPUs", "a100-16"),
    Case("8 GPUs, 200 pods", "hgx-h100", pods=PODS),
    Case("8 x 7 MIG, 200 pods", "hgx-h100", instances=7, pods=PODS),
)


def measure(work: Path) -> int:
    """Measure all cases and print a table; return the exit status."""
    table = Table(title="exporter", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    columns = []
    for number, case in enumerate(CASES):
        columns.append(asyncio.run(_case(case, work / f"scrape-{number}")))
        table.add_column(case.title, justify="right")
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    Console(highlight=False).print(table)
    return 0


async def _case(case: Case, work: Path) -> dict[str, str]:
    node = tree.create("bench", case.profile, base=work, nodes="plain")
    indices = [int(gpu.fields["index"]) for gpu in node.state().find("gpu")]
    if case.instances:
        for index in indices:
            node_changes.apply(node, "mig-mode", [str(index), "on"])
            for _ in range(case.instances):
                node_changes.apply(node, "mig-create", [str(index), "1g.10gb"])
    socket = work / "kubelet.sock"
    words = ["--driver-root-ctr-path", str(node.driver_root), "--collect-interval",
             str(int(INTERVAL_S * 1000)), "--address", "127.0.0.1:0", *case.words]  # fmt: skip
    words += ["--pod-resources-kubelet-socket", str(socket), "--textfile="]
    words += ["--devices", f"g:0-{case.gpus - 1}"] if case.gpus else []
    async with kubelet(socket, "v1", _pods(node, case.pods)):
        with (work / "log").open("wb") as log:
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "nvct.agent.core.program", "dcgm-exporter", *words], stdout=log, stderr=log,
                env={**os.environ, "NVCT_SIM_DEV": str(node.dev)},
            )  # fmt: skip
        try:
            port = await _port(work / "log")
            return await _measured(process.pid, port, len(indices[: case.gpus or None]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)


def _pods(node: tree.Node, count: int) -> api.ListPodResourcesResponse:
    """Return pods; each of the first ones has a device of the node."""
    instances, gpus = node.state().find("ci"), node.state().find("gpu")
    resource = "nvidia.com/mig-1g.10gb" if instances else "nvidia.com/gpu"
    devices = [record.fields["uuid"] for record in instances or gpus]
    answer = api.ListPodResourcesResponse()
    for number in range(count):
        pod = answer.pod_resources.add(name=f"pod-{number}", namespace="bench")
        container = pod.containers.add(name="main")
        if number < len(devices):
            container.devices.add(resource_name=resource, device_ids=[devices[number]])
    return answer


async def _port(log: Path) -> int:
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        text = _text(log)
        if "serving metrics on port " in text:
            return int(text.partition("serving metrics on port ")[2].split()[0])
        await asyncio.sleep(0.1)
    raise SystemExit(f"the exporter does not start: {_text(log)[-600:]}")


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


async def _measured(pid: int, port: int, gpus: int) -> dict[str, str]:
    await asyncio.sleep(SETTLE_S)
    while "DCGM_FI_DEV_SM_CLOCK{" not in await _scrape(port):
        pass
    times, text = [], ""
    for _ in range(SCRAPES):
        began = time.perf_counter()
        text = await _scrape(port)
        times.append(1000 * (time.perf_counter() - began))
    before = cpu_s(pid)
    end = time.monotonic() + LOAD_S
    while time.monotonic() < end:
        await _scrape(port)
        await asyncio.sleep(INTERVAL_S)
    per_sample_s = (cpu_s(pid) - before) / LOAD_S * INTERVAL_S
    processes = family(pid)
    samples = [sample for metric in parse(text) for sample in metric.samples]
    of_devices = [sample for sample in samples if "UUID" in sample.labels]
    (duration,) = [s.value for s in samples if s.name == "nvct_exporter_collection_seconds"]
    return {
        "scrape, ms": f"{statistics.median(times):.1f}",
        "scrape, 95 %, ms": f"{sorted(times)[int(len(times) * 0.95)]:.1f}",
        "sample of all GPUs, ms": f"{1000 * duration:.1f}",
        f"CPU a minute at {DEFAULT_INTERVAL_S:g} s, ms":
            f"{1000 * per_sample_s * 60 / DEFAULT_INTERVAL_S:.0f}",
        "PSS, MiB": f"{sum(pss_kib(each) for each in processes) / 1024:.1f}",
        "RSS, MiB": f"{sum(_rss_kib(each) for each in processes) / 1024:.1f}",
        "answer, KiB": f"{len(text) / 1024:.0f}",
        "series": str(len(samples)),
        "series of a GPU": f"{len(of_devices) / gpus:.0f}",
        "labels of a series, at most": str(max(len(sample.labels) for sample in samples)),
        "most values of a label": _widest(of_devices),
    }  # fmt: skip


def _widest(samples: list[Sample]) -> str:
    values: dict[str, set[str]] = {}
    for sample in samples:
        for name, value in sample.labels.items():
            values.setdefault(name, set()).add(value)
    name = max(values, key=lambda each: len(values[each]))
    return f"{name}: {len(values[name])}"


async def _scrape(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    data = await reader.read()
    writer.close()
    return data.decode().partition("\r\n\r\n")[2]


def _rss_kib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return float(next(line for line in text.splitlines() if line.startswith("Rss:")).split()[1])
