# SPDX-License-Identifier: Apache-2.0
"""Agents as processes of their own: one that is killed, and one without a GPU."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from nvct.host.modes import has_gpu
from tests.support.cpu import Limit
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.machines import REPOSITORY
from tests.unit.agent.test_agent import agent, folder, forever, serving

__all__ = ["folder"]
TAKE = """
import asyncio, sys, time
from nvct.agent.core.instance import Instance
asyncio.run(Instance(sys.argv[1]).take())
print("taken", flush=True)
time.sleep(60)
"""
SLEEPS_KIB = 25 << 10
"""The design allows 20 MiB; the size of the interpreter and its libraries differs by system."""
TIMEOUT_S = 30.0


async def test_an_agent_serves_again_when_the_newer_one_is_killed(folder: str) -> None:
    older = agent(forever)
    async with serving(older, folder):
        await until(lambda: older.status.part == "serving")
        newer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", TAKE, folder, cwd=REPOSITORY, stdout=PIPE
        )
        try:
            assert newer.stdout
            assert await newer.stdout.readline() == b"taken\n"
            await until(lambda: older.status.part == "standby")
            assert older.tasks[0].state == "stopped"
        finally:
            newer.kill()
            await newer.communicate()
        await until(lambda: older.tasks[0].state == "running")


def pss_kib(pid: int) -> int:
    """Return the memory of a process and its descendants: proportional set size."""
    pids = [pid]
    for each in pids:
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
    rollups = [Path(f"/proc/{each}/smaps_rollup").read_text() for each in pids]
    return sum(int(re.findall(r"^Pss: +(\d+) kB", text, re.MULTILINE)[0]) for text in rollups)


@pytest.mark.slow
def test_without_a_gpu_the_agent_sleeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_gpu() or os.geteuid():
        pytest.skip("needs root's privileges and a machine without a GPU")
    log = tmp_path / "log"
    command = f"mount -t tmpfs run /run && exec {sys.executable} -m nvct.cli nvct agent"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", command], cwd=REPOSITORY, stdout=file, stderr=file,
            env={"PATH": os.environ["PATH"], "KUBELET_SOCKET": f"{tmp_path}/kubelet.sock"},
        )  # fmt: skip
    try:
        limit = Limit(TIMEOUT_S)
        while "no NVIDIA GPU" not in log.read_text():
            assert not limit.is_over, log.read_text()
            time.sleep(0.05)
        loaded = Path(f"/proc/{process.pid}/maps").read_text()
        size = pss_kib(process.pid)
    finally:
        process.kill()
        process.wait()
    with capsys.disabled():
        print(f"\nthe sleeping agent takes {size / 1024:.1f} MiB (PSS, with NVML's supervisor)")
    assert "grpc" not in loaded
    assert size < SLEEPS_KIB
