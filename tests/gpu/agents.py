# SPDX-License-Identifier: Apache-2.0
"""One shot of each agent of a node, beside a kubelet of the tests: labels, metrics, devices."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path

from nvct.agent.dra import devices, gather
from nvct.agent.machine.discovery import Discovery
from nvct.agent.nvml import supervisor
from nvct.agent.nvml.client import NvmlClient
from nvct.agent.task_table import ENTRIES
from nvct.errors import HostError
from nvct.host.roots import Roots
from tests.gpu.record import save_json
from tests.unit.agent.device_plugin.fake_kubelet import FakeKubelet

POLL_S = 0.1
SECOND_SAMPLE_S = 2.5
"""Values of GPM come with the second sample."""


async def one_shot(folder: Path, roots: Roots, limit_s: float) -> str:
    """Run the agents until each has said what it says, keep that, and return a summary."""
    process = supervisor.start()  # before anything that starts a thread
    driver = ["--driver-root-ctr-path", roots.driver_root]
    with tempfile.TemporaryDirectory(prefix="nvct-kubelet-") as kubelet_folder:
        kubelet = FakeKubelet(kubelet_folder)
        await kubelet.start()
        labels, metrics = folder / "labels.txt", Path(kubelet_folder, "metrics.prom")
        node_feature = ["--use-node-feature-api=false", "--output-file", str(labels)]
        async with agent("labels", folder, [*driver, "--oneshot", *node_feature]) as log:
            found = [await waited(labels.exists, limit_s, log)]
        port = ["--address", "127.0.0.1:0", "--collect-interval", "1000"]
        async with agent("exporter", folder, [*driver, *port, "--textfile", str(metrics)]) as log:
            found.append(await waited(metrics.exists, limit_s, log))
            await asyncio.sleep(SECOND_SAMPLE_S)
            shutil.copy(metrics, folder / "metrics.txt")
        socket = ["--kubelet-socket", kubelet.socket]
        async with agent("device_plugin", folder, [*driver, *socket]) as log:
            found.append(await waited(lambda: bool(kubelet.lists), limit_s, log))
            registered = [request.resource_name for request in kubelet.registered]
            save_json(folder / "plugin.json", {"registered": registered, "lists": kubelet.lists})
        await kubelet.stop()
    client = NvmlClient(process.connection)
    try:
        machine = await gather.machine(Discovery(roots, client))
        offered = devices.devices(machine)
        save_json(folder / "dra.json", [asdict(device) for device in offered])
    finally:
        client.disconnect()
    return f"{', '.join(found)}, {len(offered)} DRA devices"


@contextlib.asynccontextmanager
async def agent(task: str, folder: Path, words: list[str]) -> AsyncIterator[Path]:
    """Run an agent's program, yield the path of its log, and end it."""
    program = next(entry.program for entry in ENTRIES if entry.folder == task)
    path = folder / f"{task}.log"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "nvct.agent.core.program", program, *words, stdin=asyncio.subprocess.DEVNULL, stdout=log,
            stderr=log, env={**os.environ, "NODE_NAME": "node"},
        )  # fmt: skip
    try:
        yield path
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def waited(is_done: Callable[[], bool], limit_s: float, log: Path) -> str:
    """Wait until an agent has said what it says; return its name and the time that took.

    Raises:
        HostError: it has not in time.
    """
    since = time.monotonic()
    while not is_done():
        if time.monotonic() - since > limit_s:
            raise HostError(
                f"{log.stem} said nothing within {limit_s:g} s", hint=f"see {log.name}"
            )
        await asyncio.sleep(POLL_S)
    return f"{log.stem} {time.monotonic() - since:.1f} s"
