# SPDX-License-Identifier: Apache-2.0
"""What nvct's agents say of a GPU that works, beside nvidia-smi in the same second; MPS; an XID."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nvct.agent.core.context import SOCKET_ENV
from nvct.errors import HostError, NvctError
from nvct.host.nvml.library import nvml_library
from nvct.host.nvml.session import NvmlSession
from nvct.host.roots import Roots
from tests.gpu import nvml_calls
from tests.gpu.agents import agent
from tests.gpu.record import save_json
from tests.support.processes import cpu_s, family, name_of, pss_kib
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet

LOAD = """
import sys, time, torch
a = torch.rand(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize(); print("busy", flush=True)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(20): a @ a
    torch.cuda.synchronize()
"""
TAKE = "import sys, torch; torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device='cuda'); "
TAKE += "print('took', sys.argv[1], 'GiB'); import time; time.sleep(float(sys.argv[2]))"
ILLEGAL = """
import cupy
kernel = cupy.RawKernel('extern "C" __global__ void k(int *p) { p[threadIdx.x] = 1; }', "k")
kernel((1,), (1,), (cupy.uint64(16),)); cupy.cuda.runtime.deviceSynchronize()
"""
METRICS = {
    "SM_CLOCK": ("clocks.sm", 1.0, 150.0), "MEM_CLOCK": ("clocks.mem", 1.0, 1.0),
    "GPU_TEMP": ("temperature.gpu", 1.0, 3.0), "MEMORY_TEMP": ("temperature.memory", 1.0, 3.0),
    "POWER_USAGE": ("power.draw.instant", 1.0, 60.0), "GPU_UTIL": ("utilization.gpu", 1.0, 10.0),
    "MEM_COPY_UTIL": ("utilization.memory", 1.0, 10.0), "FB_USED": ("memory.used", 1.0, 2.0),
    "FB_FREE": ("memory.free", 1.0, 2.0), "FB_RESERVED": ("memory.reserved", 1.0, 2.0),
}  # fmt: skip
"""Of DCGM_FI_DEV_: the query of nvidia-smi, its factor, and how far apart two readings may be."""
IS_SIMULATED = "NVCT_GPU_SIM" in os.environ
ROUNDS, ROUND_S = 6, 0.1 if IS_SIMULATED else 1.0
FULL_LOAD_S = 60.0
IDLE_S = 2.0 if IS_SIMULATED else 20.0


@contextlib.contextmanager
def load(seconds: float, *prefix: str) -> Iterator[bool]:
    """Compute by PyTorch for some seconds, by a program that starts others; yield whether it does."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    process = subprocess.Popen(
        [*prefix, "python3", "-c", LOAD, str(seconds)], env=env, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield process.stdout is not None and process.stdout.readline() == "busy\n"
    finally:
        process.kill()
        process.wait()


async def compare(folder: Path, roots: Roots, smi: str) -> str:
    """Read the exporter's metrics and nvidia-smi, idle and busy; return what lies apart."""
    apart: list[str] = []
    with tempfile.TemporaryDirectory(prefix="nvct-metrics-") as name:
        file = Path(name, "metrics.prom")
        words = ["--driver-root-ctr-path", roots.driver_root, "--address", "127.0.0.1:0",
                 "--collect-interval", "1000", "--textfile", str(file)]  # fmt: skip
        async with agent("exporter", folder, words):
            await asyncio.sleep(3)
            apart += await asyncio.to_thread(readings, folder, file, smi, "idle")
            with load(60) as works:
                if works:
                    await asyncio.sleep(4)
                    apart += await asyncio.to_thread(readings, folder, file, smi, "busy")
    cost = await idle(folder, roots)
    return f"{', '.join(apart) or 'all metrics as nvidia-smi says'}; {cost}"


def readings(folder: Path, file: Path, smi: str, when: str) -> list[str]:
    """Return the metrics that never lie near nvidia-smi's value of the same second."""
    query = ",".join(word for word, _, _ in METRICS.values())
    rows, near = [], set()
    for _ in range(ROUNDS):
        said = subprocess.run(
            [smi, f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", "0"],
            capture_output=True, text=True, check=False,
        ).stdout  # fmt: skip
        text = file.read_text()
        row = {}
        for (metric, (_, factor, width)), word in zip(
            METRICS.items(), said.split(","), strict=False
        ):
            ours = re.search(rf'^DCGM_FI_DEV_{metric}{{gpu="0".*}} (\S+)$', text, re.MULTILINE)
            row[metric] = [ours and float(ours[1]), word.strip()]
            with contextlib.suppress(ValueError, TypeError):
                if ours and abs(float(ours[1]) - factor * float(word)) <= width:
                    near.add(metric)
        rows.append(row)
        time.sleep(ROUND_S)
    save_json(folder / f"{when}.json", rows)
    return [f"{metric} ({when})" for metric in METRICS if metric not in near]


async def full_load(folder: Path, roots: Roots) -> str:
    """Compute for a minute beside the device plugin; return what it said of the GPUs' health.

    Raises:
        HostError: it called one unhealthy, or offered none.
    """
    said: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="nvct-kubelet-") as name:
        kubelet = FakeKubelet(name)
        await kubelet.start()
        words = ["--driver-root-ctr-path", roots.driver_root, "--kubelet-socket", kubelet.socket]
        async with agent("device_plugin", folder, words):
            with load(FULL_LOAD_S) as works:
                await asyncio.sleep(3)
                end = time.monotonic() + (FULL_LOAD_S if works else 0)
                while not said or time.monotonic() < end:
                    await asyncio.sleep(ROUND_S)
                    said |= {health for each in kubelet.lists.values() for health in each.values()}
        await kubelet.stop()
    if said != {"Healthy"}:
        raise HostError(f"the device plugin said {said}", hint="a GPU under full load is healthy")
    return f"healthy in {FULL_LOAD_S:.0f} s of full load" if works else "healthy; no load here"


async def idle(folder: Path, roots: Roots) -> str:
    """Return memory and CPU of the agent with plugin and exporter while nothing happens."""
    with tempfile.TemporaryDirectory(prefix="nvct-kubelet-") as name:
        kubelet = FakeKubelet(name)
        await kubelet.start()
        env = {**os.environ, "NODE_NAME": "node", "KUBELET_SOCKET": kubelet.socket,
               "DRIVER_ROOT_CTR_PATH": roots.driver_root,
               SOCKET_ENV: f"{name}/agent/agent.sock"}  # fmt: skip
        env.pop(nvml_calls.LOG_ENV, None)  # the record itself takes memory
        os.mkdir(f"{name}/agent")
        with (folder / "agent.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "nvct.agent", "device-plugin", "exporter",
                stdout=log, stderr=log, env=env,
            )  # fmt: skip
        try:
            await asyncio.sleep(5)
            before = cpu_s(process.pid)
            await asyncio.sleep(IDLE_S)
            sizes = {f"{pid} {name_of(pid)}": pss_kib(pid) for pid in family(process.pid)}
            save_json(folder / "memory.json", sizes)
            share = (cpu_s(process.pid) - before) / IDLE_S
            return (
                f"agent idle: {100 * share:.2f} % of a core, {sum(sizes.values()) / 1024:.1f} MiB"
            )
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()
            await kubelet.stop()


def mps(folder: Path, smi: str) -> str:
    """Ask an MPS control daemon of our own, and try to exceed a memory limit; None changes the card."""
    program = shutil.which("nvidia-cuda-mps-control")
    if program is None:
        return ""
    place = tempfile.mkdtemp(prefix="nvct-mps-")
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": f"{place}/pipe",
           "CUDA_MPS_LOG_DIRECTORY": f"{place}/log", "HOME": place}  # fmt: skip
    env.pop("PYTHONPATH", None)
    for name in ("pipe", "log"):
        os.mkdir(f"{place}/{name}")
    lines: list[str] = []

    def say(command: str) -> str:
        done = subprocess.run([program, *(() if command else ["-d"])], input=f"{command}\n",
                              env=env, capture_output=True, text=True, check=False, timeout=20)  # fmt: skip
        lines.append(f"> {command}\n{done.returncode} {done.stdout}{done.stderr}".rstrip())
        return done.stdout

    def client(gib: int, **more: str) -> str:
        done = subprocess.run(["python3", "-c", TAKE, str(gib), "0"], env={**env, **more},
                              capture_output=True, text=True, check=False, timeout=60)  # fmt: skip
        last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        lines.append(f"client takes {gib} GiB {more}: {done.returncode} {last}")
        return last

    try:
        say("")
        for command in ("get_server_list", "get_default_active_thread_percentage",
                        "set_default_active_thread_percentage 50",
                        "get_default_active_thread_percentage",
                        "get_default_device_pinned_mem_limit 0",
                        "set_default_device_pinned_mem_limit 0 4G",
                        "get_default_device_pinned_mem_limit 0", "help", "nonsense"):  # fmt: skip
            say(command)
        within, beyond = client(2), client(8)
        by_variable = client(8, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=16G")
        holder = subprocess.Popen(
            ["python3", "-c", TAKE, "1", "8"], env=env, stdout=subprocess.PIPE
        )
        if holder.stdout:
            holder.stdout.readline()
        server = say("get_server_list").strip()
        for command in ("get_client_list", "ps", "get_device_client_list", "lspart"):
            say(f"{command} {server}" if command == "get_client_list" else command)
        listed = subprocess.run([smi], capture_output=True, text=True, check=False).stdout
        lines.append(listed)
        nvct = [sys.executable, "-m", "nvct.cli", "nvct", "ps"]
        lines.append(subprocess.run(nvct, capture_output=True, text=True, check=False).stdout)
        holder.kill()
        holder.wait()
        say("quit")
    finally:
        (folder / "mps.txt").write_text("\n".join(lines) + "\n")
        for log in Path(place, "log").iterdir():
            shutil.copy(log, folder / f"{log.name}.txt")
        subprocess.run([program], input="quit -t 1\n", env=env, text=True, check=False,
                       capture_output=True)  # fmt: skip
        shutil.rmtree(place, ignore_errors=True)
    return f"limit 4 GiB: {within}; {beyond}; a client's own limit of 16 GiB: {by_variable}"


def fault(folder: Path, roots: Roots) -> str:
    """Let a kernel write to an illegal address; return the XIDs that NVML reports."""
    session = NvmlSession(nvml_library(roots))
    answers = []
    try:
        session.ask("events", object)
        done = subprocess.run(
            ["python3", "-c", ILLEGAL], capture_output=True, text=True, check=False, timeout=60,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        )  # fmt: skip
        (folder / "program.txt").write_text(f"{done.returncode}\n{done.stdout}{done.stderr}")
        for _ in range(4):
            time.sleep(1)
            for verb in ("events", "conditions", "samples"):
                try:
                    answers.append({"verb": verb, "value": session.ask(verb, object)})
                except NvctError as error:
                    answers.append({"verb": verb, "error": error.message})
    finally:
        session.close()
    save_json(folder / "verbs.json", answers)
    messages = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    ours = [line for line in messages.splitlines() if re.search("NVRM|Xid", line)]
    (folder / "dmesg.txt").write_text("\n".join(ours[-30:]) + "\n")
    seen = re.findall(r"'xid': (\d+)", str([a for a in answers if a["verb"] == "events"]))
    return (
        f"the program ended with {done.returncode}; XIDs {', '.join(sorted(set(seen))) or 'none'}"
    )
