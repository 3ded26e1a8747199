# SPDX-License-Identifier: Apache-2.0
"""Debian's prometheus, with nvct's rules, beside an exporter and an agent on a simulated node."""

import asyncio
import contextlib
import io
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nvct.agent.core.context import Context
from nvct.agent.core.logs import Log
from nvct.agent.exporter import counters
from nvct.agent.exporter import task as exporter
from nvct.agent.kubelet import kubelet_pb2 as api
from nvct.agent.web import exposition, http
from nvct.agent.web.http import Answer, Request
from nvct_sim import node_changes, tree
from tests.monitoring import agent_metrics
from tests.monitoring.prometheus import RULES, program
from tests.support.cpu import Limit
from tests.support.nvml_node import CACHE
from tests.unit.agent.device_plugin.fake_kubelet import until
from tests.unit.agent.kubelet.test_pod_resources import kubelet
from tests.unit.agent.machines import client_of

TIMEOUT_S = 60.0
MIG, TRAIN, SHARED, LOST = 0, 1, 2, 7
"""Indices of GPUs: in MIG mode, of one pod, of two pods, and one that hangs."""


@dataclass
class Live:
    """A running Prometheus.

    Attributes:
        port: of its API.
        node: the simulated node that it knows.
    """

    port: int
    node: tree.Node

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an answer.

        Raises:
            AssertionError: Prometheus refuses the expression.
        """
        words = urllib.parse.urlencode({"query": expression})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{words}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                series: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return series
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                raise
            raise AssertionError(f"{expression}: {error.read().decode()}") from error

    def wait(self, expression: str) -> None:
        """Wait until an expression has an answer."""
        limit = Limit(TIMEOUT_S)
        while True:
            with contextlib.suppress(OSError):
                if self.query(expression):
                    return
            assert not limit.is_over, expression
            time.sleep(0.2)


@contextlib.contextmanager
def live(folder: Path) -> Iterator[Live]:
    """Run a node, its exporter and Prometheus, until the rules have been evaluated."""
    _host(folder)
    node = tree.create("live", "hgx-h100", folder, nodes="plain", native_cache=CACHE)
    node_changes.apply(node, "mig-mode", [str(MIG), "on"])
    for _ in range(2):
        node_changes.apply(node, "mig-create", [str(MIG), "3g.40gb"])
    with _targets(node, folder) as ports, _prometheus(folder, ports) as port:
        running = Live(port, node)
        running.wait("count(DCGM_FI_DEV_GPU_TEMP) > 7")
        for pid in (4711, 4712):
            node_changes.apply(
                node, "process", [str(TRAIN), str(pid), f"memory={4 << 30}", "sm=40"]
            )
        for index, utilization in enumerate((10, 90, 40, 70, 20, 65, 80)):
            fields = [f"util={utilization}", f"used={utilization << 29}"]
            node_changes.apply(node, "gpu", [str(index), *fields])
        node_changes.apply(node, "xid", [str(TRAIN), "79"])
        node_changes.apply(node, "gpu", [str(LOST), "hang=3600"])
        running.wait("nvct_xid_errors_total")
        running.wait('count(ALERTS{alertname=~"NvctGpuXid|NvctGpuDoesNotAnswer"}) == 2')
        yield running


def _host(folder: Path) -> None:
    """Make the cgroup of a container's process, and the kubelet's link with its name."""
    container = "c" * 64
    for path in ("proc/4711", "var/log/containers"):
        (folder / path).mkdir(parents=True)
    (folder / "proc/4711/cgroup").write_text(f"0::/kubepods/cri-containerd-{container}.scope\n")
    (folder / f"var/log/containers/train_ml_main-{container}.log").touch()


def _pods(node: tree.Node) -> api.ListPodResourcesResponse:
    gpus = {int(gpu.fields["index"]): gpu.fields["uuid"] for gpu in node.state().find("gpu")}
    instance = node.state().find("ci")[0].fields["uuid"]
    held = {
        "train": ("nvidia.com/gpu", gpus[TRAIN]),
        "infer": ("nvidia.com/mig-3g.40gb", instance),
        "share-a": ("nvidia.com/gpu.shared", f"{gpus[SHARED]}::0"),
        "share-b": ("nvidia.com/gpu.shared", f"{gpus[SHARED]}::1"),
    }
    answer = api.ListPodResourcesResponse()
    for name, (resource, id_) in held.items():
        container = answer.pod_resources.add(name=name, namespace="ml").containers.add(name="main")
        container.devices.add(resource_name=resource, device_ids=[id_])
    return answer


def _counter_file(folder: Path) -> Path:
    """Write a counter file with the default set and all other fields."""
    default = counters.DEFAULT.read_text()
    others = [
        name for name in (*counters.FIELDS, *counters.COMPUTED) if f"\n{name}," not in default
    ]
    path = folder / "counters.csv"
    path.write_text(default + "".join(f"{name}, gauge, Help.\n" for name in others))
    return path


@contextlib.contextmanager
def _targets(node: tree.Node, folder: Path) -> Iterator[tuple[int, int]]:
    """Serve the exporter's metrics and those of an agent; yield their ports."""
    words = (
        "--address", "127.0.0.1:0", "--collect-interval", "1000", "-f", str(_counter_file(folder)),
        "--pod-resources-kubelet-socket", str(folder / "kubelet.sock"),
        "--processes", "--host-root", str(folder),
    )  # fmt: skip
    ports: list[int] = []
    failures: list[BaseException | None] = []
    stop = threading.Event()
    of_agent = exposition.text(agent_metrics.families(folder))

    def answer(_request: Request) -> Answer:
        return http.Answer(200, of_agent, exposition.CONTENT_TYPE)

    async def serve() -> None:
        env, log = {"NODE_NAME": "node-1"}, Log(target=io.StringIO())
        made = exporter.make(Context(words=words, env=env, client=client, journal=log))
        agent = http.Server(answer)
        async with kubelet(folder / "kubelet.sock", "v1", _pods(node)):
            port = await agent.listen("127.0.0.1", 0)
            running = asyncio.create_task(made.run())
            await until(lambda: made.port != 0)
            ports.extend((made.port, port))
            await asyncio.to_thread(stop.wait)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await agent.close()

    with client_of(node) as client:
        thread = threading.Thread(target=lambda: failures.append(_failure_of(serve)))
        thread.start()
        try:
            while len(ports) < 2:
                assert thread.is_alive(), failures
                time.sleep(0.02)
            yield ports[0], ports[1]
        finally:
            stop.set()
            thread.join()


def _failure_of(serve: Callable[[], Coroutine[Any, Any, None]]) -> BaseException | None:
    """Run until it ends; return the error that ended it, which a thread would only print."""
    try:
        asyncio.run(serve())
    except Exception as error:
        return error
    return None


@contextlib.contextmanager
def _prometheus(folder: Path, ports: tuple[int, int]) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    jobs = [{"targets": [f"127.0.0.1:{each}"]} for each in ports]
    config = folder / "prometheus.yml"
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "nvct", "static_configs": jobs}],
    }
    config.write_text(yaml.safe_dump(settings))
    command = [
        program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log, cwd=folder
        )
    try:
        yield port
    finally:
        process.kill()
        process.wait()
