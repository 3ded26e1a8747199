# SPDX-License-Identifier: Apache-2.0
"""What a node's agent costs the API server: `python -m tests.kubernetes.cost [SECONDS [CLAIMS...]]`, as root.

With numbers of claims, the agent has the tasks of a node with DRA; so many pods have a MIG device by
a claim each, and the agent's CPU time is measured, too. Without, all tasks that ask the API server run in one agent on a real cluster, with the chart's account. The API
server's audit log has each request. To see an hour in seconds, the periods of the tasks are divided
by SPEEDUP: the heartbeat of the condition, the length of a watch, the interval of the labels. What
an event costs is counted as it is.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nvct_sim import node_changes
from tests.engines.box import DRIVER_ROOT, PROGRAMS, BoxedProcess
from tests.kubernetes import alone, audit
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.audit import Right
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import (
    GPUS,
    TIMEOUT_S,
    allocatable,
    prepare,
    simulated,
    smi,
)
from tests.kubernetes.dra import asks_for_claims, claim, devices, runs
from tests.support.processes import cpu_s

CHART = Path(__file__).parents[2] / "packaging/helm/nvct"
SPEEDUP = 60
SECONDS = 40
NODES = 5000
HOUR_S = 3600
SETTLED_S = 8.0
"""After an event: longer than the agent takes to see it, write, and look again."""
TYPE = "nvct.dev/GPUReady"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
TASKS = ("condition", "config-manager", "device-plugin", "labels", "mig-manager")
CLAIM_TASKS = ("condition", "dra", "exporter", "labels")
PROFILE, PROFILES = "1g.10gb", 7
"""The MIG devices of each GPU."""
START_S = 300.0
"""Until so many pods run."""
CONFIGS = {"default": "version: v1\n", "mixed": "version: v1\nflags: {migStrategy: mixed}\n"}
LOG = "agent.log"
AGENT = """
from nvct.agent.kubernetes import cluster
from nvct.agent.condition import task as condition
from nvct.agent.dra import claims, publisher, task as dra
from nvct.agent.labels import task as labels
from nvct.agent.__main__ import main
condition.HEARTBEAT_S /= {speedup}
labels.PERIOD_S /= {speedup}
claims.TURN_S /= {speedup}
dra.RECONCILE_S /= {speedup}
publisher.WATCH_S /= {speedup}
cluster.Cluster.changes.__defaults__ = (cluster.WATCH_S / {speedup},)
main()
"""


class Cost(NamedTuple):
    """Requests of one node.

    Attributes:
        idle: an hour, by what they do.
        events: of one event, by what happens.
    """

    idle: dict[Right, float]
    events: dict[str, int]

    @property
    def idle_sum(self) -> float:
        """Return all requests of an idle node in an hour."""
        return sum(self.idle.values())

    def lines(self) -> list[str]:
        """Return the tables for docs/kubernetes.md."""
        rows = ["| request | of an idle node, in an hour |", "|---|---|"]
        rows += [
            f"| {right.verb} {right.resource} | {count:.0f} |"
            for right, count in sorted(self.idle.items())
        ]
        rows.append(f"| all | {self.idle_sum:.0f} |")
        rows += ["", "| event | requests |", "|---|---|"]
        rows += [f"| {what} | {count} |" for what, count in self.events.items()]
        second = self.idle_sum * NODES / HOUR_S
        return [*rows, "", f"{NODES} idle nodes: {second:.1f} requests a second"]


@contextlib.contextmanager
def installed(
    cluster: Cluster, value: str = "--set=devicePlugin.config.name=plugin"
) -> Iterator[str]:
    """Install the chart where no node is chosen; yield the kubeconfig of its account on the node."""
    words = ("--namespace=nvct", "--create-namespace", value,
             "--set=nodeSelector.kubernetes\\.io/hostname=none", "--set=uninstall.enabled=false")  # fmt: skip
    cluster.helm("install", "nvct", str(CHART), *words)
    try:
        bound = ("--bound-object-kind=Node", f"--bound-object-name={NODE}")
        token = cluster.kubectl("create", "token", "nvct", "--namespace=nvct", *bound).strip()
        config = json.loads(cluster.box.read(KUBECONFIG))
        config["users"][0]["user"] = {"token": token}
        path = f"{FOLDER}/nvct.kubeconfig"
        cluster.box.write(path, json.dumps(config))
        yield path
    finally:
        cluster.helm("uninstall", "nvct", "--namespace=nvct", "--wait")


@contextlib.contextmanager
def agent(cluster: Cluster, kubeconfig: str, speedup: int = 1) -> Iterator[int]:
    """Run the agent until pods can have its GPUs; yield the end of the log before it."""
    began = cluster.audit_log.stat().st_size
    for name, text in CONFIGS.items():
        cluster.box.call("mkdir", "-p", f"{FOLDER}/configs")
        cluster.box.write(f"{FOLDER}/configs/{name}", text)
    env = {
        "CONFIG_FILE_SRCDIR": f"{FOLDER}/configs", "CONFIG_FILE": f"{FOLDER}/config.yaml",
        "FALLBACK_STRATEGIES": "named",
    }  # fmt: skip
    with _started(cluster, kubeconfig, TASKS, env, speedup):
        _until(cluster, lambda: _is_ready(cluster) and allocatable(cluster) == GPUS)
        time.sleep(SETTLED_S)
        yield began


@contextlib.contextmanager
def _started(
    cluster: Cluster,
    kubeconfig: str,
    tasks: tuple[str, ...],
    env: dict[str, str],
    speedup: int = 1,
) -> Iterator[BoxedProcess]:
    env = {
        "KUBECONFIG": kubeconfig, "NODE_NAME": NODE, "NVIDIA_DRIVER_ROOT": DRIVER_ROOT,
        "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT, "FAIL_ON_INIT_ERROR": "false",
        "GFD_SLEEP_INTERVAL": f"{600 // speedup}s", **env,
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in env.items()]
    python = [f"{PROGRAMS}/python", "-I", "-c", AGENT.format(speedup=speedup), *tasks]
    process = cluster.box.start(["env", *words, *python], LOG)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)


def _until(cluster: Cluster, ready: Callable[[], bool], limit_s: float = TIMEOUT_S) -> None:
    assert wait(ready, limit_s), (cluster.box.work / LOG).read_text()


def measure(cluster: Cluster, seconds: float) -> Cost:
    """Return what the agent of a cluster's node asks, idle for some seconds and at events."""
    with installed(cluster) as kubeconfig:
        with agent(cluster, kubeconfig) as began:
            events = {"the agent starts": len(_asked(cluster, began))}
            for what, event in _events(cluster):
                events[what] = _count(cluster, event)
        with agent(cluster, kubeconfig, SPEEDUP):
            return Cost(idle(cluster, seconds), events)


def idle(cluster: Cluster, seconds: float) -> dict[Right, float]:
    """Return what an idle agent with shortened periods asks in an hour."""
    began = cluster.audit_log.stat().st_size
    time.sleep(seconds)
    found = Counter(request.right for request in _asked(cluster, began))
    hours = seconds * SPEEDUP / HOUR_S
    return {right: count / hours for right, count in found.items()}


def _asked(cluster: Cluster, began: int) -> list[audit.Request]:
    """Return the requests of nvct's account since an offset of the log; each watch once."""
    assert not audit.refused(cluster.audit_log, began)
    return audit.of_accounts(audit.requests(cluster.audit_log, began))


def _count(cluster: Cluster, event: Callable[[], None]) -> int:
    """Return how many requests an event costs."""
    began = cluster.audit_log.stat().st_size
    event()
    time.sleep(SETTLED_S)
    return len(_asked(cluster, began))


def _events(cluster: Cluster) -> list[tuple[str, Callable[[], None]]]:
    machine = simulated(cluster)

    def hang() -> None:
        node_changes.set_fault(machine, "hang", 120)
        assert wait(lambda: not _is_ready(cluster), TIMEOUT_S)
        node_changes.set_fault(machine, "hang", 0)
        assert wait(lambda: _is_ready(cluster), TIMEOUT_S)

    def configure() -> None:
        cluster.label(f"{CONFIG_LABEL}=mixed")

    def divide() -> None:
        smi(cluster, "-i", "0", "-mig", "1")
        smi(cluster, "mig", "-i", "0", "-cgi", "1g.10gb", "-C")

    def undo() -> None:
        smi(cluster, "mig", "-i", "0", "-dci")
        smi(cluster, "mig", "-i", "0", "-dgi")
        smi(cluster, "-i", "0", "-mig", "0")
        cluster.label(f"{CONFIG_LABEL}-")
        assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S)

    return [
        ("the label of another config file is set", configure),
        ("a GPU is divided into MIG devices", divide),
        ("that is undone, and the label is removed", undo),
        ("no GPU can be had for a while: condition False, then True", hang),
    ]


def _all_run(cluster: Cluster, names: list[str]) -> bool:
    return all(runs(cluster, name) for name in names)


def of_claims(cluster: Cluster, counts: Iterable[int], seconds: float) -> Iterator[str]:
    """Yield a line for each number of pods that have a claim: requests and CPU of an idle agent."""
    prepare(cluster)
    for gpu in map(str, range(GPUS)):
        smi(cluster, "-i", gpu, "-mig", "1")
        smi(cluster, "mig", "-i", gpu, "-cgi", ",".join([PROFILE] * PROFILES), "-C")
    env = {
        "NVIDIA_CDI_HOOK_PATH": f"{PROGRAMS}/nvidia-cdi-hook", "DCGM_EXPORTER_LISTEN": "127.0.0.1:0",
    }  # fmt: skip
    made = 0
    with installed(cluster, "--set=dra.enabled=true") as kubeconfig:
        for count in sorted(counts):
            with _started(cluster, kubeconfig, CLAIM_TASKS, env) as process:
                _until(cluster, lambda: len(devices(cluster)) == GPUS * PROFILES)
                names = [f"claim-{number}" for number in range(made, count)]
                for name in names:
                    claim(cluster, name, "true", device_class="mig.nvidia.com")
                    cluster.api.create(
                        PODS, asks_for_claims(name, script="sleep 36000").manifest(name)
                    )
                _until(cluster, partial(_all_run, cluster, names), START_S)
                made = count
                time.sleep(SETTLED_S)
                pid = process.program()
                assert pid is not None
                before = cpu_s(pid)
                time.sleep(seconds)
                used = 100 * (cpu_s(pid) - before) / seconds
            with _started(cluster, kubeconfig, CLAIM_TASKS, env, SPEEDUP):
                _until(cluster, lambda: _is_ready(cluster))
                time.sleep(SETTLED_S)
                asked = idle(cluster, seconds)
            each = ", ".join(f"{r.verb} {r.resource} {n:.0f}" for r, n in sorted(asked.items()))
            yield f"{count} claims: {sum(asked.values()):.0f} requests an hour ({each}), {used:.2f} % of a core"


def _is_ready(cluster: Cluster) -> bool:
    node = cluster.api.get(f"/api/v1/nodes/{NODE}")
    conditions = node["status"].get("conditions", ())
    return any(one["type"] == TYPE and one["status"] == "True" for one in conditions)


def main(words: list[str]) -> None:
    """Print the tables."""
    seconds = float(words[0] if words else SECONDS)
    with alone.running() as cluster:
        if words[1:]:
            for line in of_claims(cluster, map(int, words[1:]), seconds):
                print(line, flush=True)
        else:
            print("\n".join(measure(cluster, seconds).lines()))


if __name__ == "__main__":
    main(sys.argv[1:])
