# SPDX-License-Identifier: Apache-2.0
"""The device plugin beside the incumbent's, on simulated nodes, with a kubelet of the tests.

Times are medians of the rounds; memory is the proportional set size of each process of the last
round. The whole agent is measured, too, with all tasks that run beside each other, and an API
server of the tests. Its memory has a limit, and its CPU while nothing happens.
"""

import asyncio
import functools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from rich import box
from rich.console import Console
from rich.table import Table

from nvct.agent.core import instance
from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.linux.kernel import KERNEL
from tests.bench import one_node
from tests.support.processes import cpu_s, family, name_of, pss_kib
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet

PROGRAM = "nvidia-device-plugin"
FLAGS = ("--driver-root=/", "--driver-root-ctr-path=/")
ROUNDS = int(os.environ.get("NVCT_BENCH_AGENT_ROUNDS", "5"))
IDLE_S = float(os.environ.get("NVCT_BENCH_IDLE_S", "20"))
SETTLE_S = 5.0
"""After the last list, before the time of idleness begins."""
CALLS = 100
PREFERRED_CALLS = 5
TIMEOUT_S = 30.0
POLL_S = 0.001
TASKS = "condition,config-manager,device-plugin,exporter,labels,mig-manager"
"""All but dra, which takes the place of device-plugin."""
IDLE_ROW = "idle CPU, % of a core"
BUDGET_MIB = 65.0
"""Of all processes of the agent on a node of 8 GPUs."""
BUDGET_CPU = 1.0
"""Percent of a core that they may take while nothing happens."""


@dataclass
class Subject:
    """A device plugin.

    Attributes:
        name: in the table.
        command: its argument vector.
        values: milliseconds of each measurement, and more, by the name of the row.
        processes: KiB of proportional set size of each process, by its name.
    """

    name: str
    command: list[str]
    values: dict[str, list[float]] = field(default_factory=dict)
    processes: list[tuple[str, float]] = field(default_factory=list)

    def add(self, row: str, value: float) -> None:
        """Add a value to a row."""
        self.values.setdefault(row, []).append(value)


def main() -> None:
    """Measure on one node; the arguments are a work folder and the title."""
    work, title = Path(sys.argv[1]), sys.argv[2]
    KERNEL.mount("nvct-bench", "/var/lib", "tmpfs")  # the folder's path is fixed
    Path(FOLDER).mkdir(parents=True)
    Path(instance.FOLDER).mkdir(mode=0o700, exist_ok=True)
    KERNEL.mount("nvct-bench", instance.FOLDER, "tmpfs")  # another agent here has its own state
    subjects = [Subject("nvct", [str(Path(sys.executable).with_name(PROGRAM)), *FLAGS])]
    peer = Path(os.environ.get("NVCT_BENCH_PEER", "/nonexistent"), PROGRAM)
    if peer.exists():
        subjects.append(Subject("peer", [str(peer), *FLAGS]))
    for number in range(ROUNDS):
        for subject in subjects:
            asyncio.run(_round(subject, work, is_last=number == ROUNDS - 1))
    with one_node.serving() as kubeconfig:
        agent = asyncio.run(_agent(work, kubeconfig))
    _print(title, subjects)
    _print_agent(agent, subjects)
    if (_memory_mib(agent) or 0.0) > BUDGET_MIB:
        raise SystemExit(f"the agent's processes have more than {BUDGET_MIB:g} MiB")
    if (_median(IDLE_ROW, agent) or 0.0) > BUDGET_CPU:
        raise SystemExit(f"the agent takes more than {BUDGET_CPU:g} % of a core while idle")


async def _agent(work: Path, kubeconfig: str) -> Subject:
    """Measure `nvct agent` with all tasks that run beside each other."""
    config = work / "kubeconfig"
    config.write_text(kubeconfig)
    command = [str(Path(sys.executable).with_name("nvct")), "agent", "--tasks", TASKS]
    subject = Subject("agent", command)
    env = {
        "KUBECONFIG": str(config), "NODE_NAME": one_node.NAME, "DRIVER_ROOT_CTR_PATH": "/",
        "CONFIG_FILE_DST": str(work / "config.yaml"), "CONFIG_FILE_SRCDIR": str(work),
        "DCGM_EXPORTER_LISTEN": "127.0.0.1:0",
    }  # fmt: skip
    kubelet = FakeKubelet(FOLDER)
    await kubelet.start()
    with (work / "agent.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: ASYNC220
            command, stdout=log, stderr=log, env={**os.environ, **env}
        )
    try:
        await _listed(kubelet, subject, log.name)
        await _idle(process.pid, subject)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
        await kubelet.stop()
    return subject


async def _round(subject: Subject, work: Path, *, is_last: bool) -> None:
    kubelet = FakeKubelet(FOLDER)
    await kubelet.start()
    began = time.perf_counter()
    with (work / f"{subject.name}.log").open("ab") as log:
        process = subprocess.Popen(subject.command, stdout=log, stderr=log)  # noqa: ASYNC220
    try:
        await _listed(kubelet, subject, log.name)
        subject.add("start to list", _ms(began))
        await kubelet.stop()
        await asyncio.sleep(1.0)
        await kubelet.start()
        began = time.perf_counter()
        await _listed(kubelet, subject, log.name)
        subject.add("kubelet.sock to list", _ms(began))
        await _calls(kubelet, subject)
        if is_last:
            await _idle(process.pid, subject)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(TIMEOUT_S)
        await kubelet.stop()


async def _listed(kubelet: FakeKubelet, subject: Subject, log: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not kubelet.lists.get(GPU):
        if time.monotonic() > end:
            raise SystemExit(f"{subject.name} lists nothing: {_end_of(log)}")
        await asyncio.sleep(POLL_S)


async def _calls(kubelet: FakeKubelet, subject: Subject) -> None:
    ids = sorted(kubelet.lists[GPU])
    half = len(ids) // 2
    one = api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=ids[:1])]
    )
    prefer = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=half)
        ]
    )
    for _ in range(CALLS):
        began = time.perf_counter()
        await kubelet.call(GPU, "Allocate", one, api.AllocateResponse)
        subject.add("Allocate", _ms(began))
    for _ in range(PREFERRED_CALLS):
        row = f"GetPreferredAllocation, {half} of {len(ids)}"
        began = time.perf_counter()
        try:
            await kubelet.call(
                GPU, "GetPreferredAllocation", prefer, api.PreferredAllocationResponse
            )
        except grpc.RpcError as error:
            print(f"{subject.name}: {row}: {error.code().name}")
            return
        subject.add(row, _ms(began))


async def _idle(pid: int, subject: Subject) -> None:
    await asyncio.sleep(SETTLE_S)
    before = cpu_s(pid)
    await asyncio.sleep(IDLE_S)
    subject.add(IDLE_ROW, 100 * (cpu_s(pid) - before) / IDLE_S)
    subject.processes = [(name_of(each), pss_kib(each)) for each in family(pid)]


def _end_of(log: str) -> str:
    return Path(log).read_text(encoding="utf-8", errors="replace")[-600:]


def _ms(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _print(title: str, subjects: list[Subject]) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for subject in subjects:
        table.add_column(subject.name, justify="right")
    if len(subjects) > 1:
        table.add_column("x peer", justify="right")
    for row in subjects[0].values:
        unit = "" if "%" in row else ", ms"
        _row(table, row + unit, subjects, functools.partial(_median, row))
    _row(table, "PSS of all processes, MiB", subjects, _memory_mib)
    console = Console(highlight=False)
    console.print(table)
    for subject in subjects:
        sizes = (f"{name} {kib / 1024:.1f}" for name, kib in subject.processes)
        console.print(f"  PSS of {subject.name}'s processes, MiB: {', '.join(sizes)}")


def _print_agent(agent: Subject, subjects: list[Subject]) -> None:
    memory = _memory_mib(agent) or 0.0
    cpu = _median(IDLE_ROW, agent) or 0.0
    sizes = (f"{name} {kib / 1024:.1f}" for name, kib in agent.processes)
    print(f"  the whole agent ({TASKS}):")
    print(f"    PSS {memory:.1f} of {BUDGET_MIB:g} MiB: {', '.join(sizes)}")
    print(f"    idle CPU {cpu:.2f} of {BUDGET_CPU:g} % of a core")
    for subject in subjects:
        plugin, ticks = _memory_mib(subject), _median(IDLE_ROW, subject)
        if plugin and ticks:
            print(
                f"    x {subject.name}'s plugin: PSS {memory / plugin:.2f}, CPU {cpu / ticks:.2f}"
            )


def _row(
    table: Table, name: str, subjects: list[Subject], value: Callable[[Subject], float | None]
) -> None:
    values = [value(subject) for subject in subjects]
    cells = ["-" if each is None else f"{each:.2f}" for each in values]
    if len(values) > 1:
        own, peer = values[0], values[1]
        cells.append("-" if own is None or not peer else f"{own / peer:.2f}")
    table.add_row(name, *cells)


def _median(row: str, subject: Subject) -> float | None:
    values = subject.values.get(row)
    return statistics.median(values) if values else None


def _memory_mib(subject: Subject) -> float | None:
    return sum(kib for _, kib in subject.processes) / 1024 or None
