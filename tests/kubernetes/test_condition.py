# SPDX-License-Identifier: Apache-2.0
"""The condition nvct.dev/GPUReady on a real API server, written by an agent on the node."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from nvct.agent.condition.condition import TYPE
from nvct_sim import node_changes
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes import cost
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S, allocatable, simulated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
LOG = "agent.log"
IDLE_AN_HOUR = 42
NO_AGENT = ["of", "the", "agent", "runs", "here"]
RIGHTS = (
    ("condition", "get", "nodes"),
    ("condition-status", "patch", "nodes/status"),
    ("condition-events", "create", "events"),
)


def kubeconfig_of(cluster: Cluster, account: str) -> str:
    """Return a kubeconfig file with the token of a new service account."""
    cluster.kubectl("create", "serviceaccount", account)
    config = json.loads(cluster.box.read(KUBECONFIG))
    token = cluster.kubectl("create", "token", account).strip()
    config["users"][0]["user"] = {"token": token}
    path = f"{FOLDER}/{account}.kubeconfig"
    cluster.box.write(path, json.dumps(config))
    return path


@contextlib.contextmanager
def agent(cluster: Cluster, kubeconfig: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the agent on the node."""
    settings = {
        "KUBECONFIG": kubeconfig, "NODE_NAME": NODE, "NVIDIA_DRIVER_ROOT": DRIVER_ROOT,
        "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT, "FAIL_ON_INIT_ERROR": "false",
    }  # fmt: skip
    words = [f"{key}={value}" for key, value in settings.items()]
    tasks = "--tasks=device-plugin,condition"
    process = cluster.box.start(["env", *words, f"{PROGRAMS}/nvct", "agent", tasks], LOG)
    try:
        yield process
    finally:
        cluster.box.call("pkill", "-f", "nvct.agent")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)


def condition(cluster: Cluster) -> dict[str, Any]:
    node = cluster.api.find(f"/api/v1/nodes/{NODE}")
    assert node is not None
    return next((one for one in node["status"]["conditions"] if one["type"] == TYPE), {})


def state(cluster: Cluster) -> str:
    """Return what explains a condition."""
    return f"{condition(cluster)}\n{status(cluster)}\n{log(cluster)}"


def status(cluster: Cluster) -> str:
    return cluster.box.call("nvct", "agent", "--status").stdout


def log(cluster: Cluster) -> str:
    return (cluster.box.work / LOG).read_text(encoding="utf-8")


def test_without_rights_the_log_says_which_and_gpus_are_offered(cluster: Cluster) -> None:
    with agent(cluster, kubeconfig_of(cluster, "nobody")):
        assert wait(lambda: "may not get nodes" in log(cluster), TIMEOUT_S), log(cluster)
        assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S), log(cluster)
    assert "service account nobody of namespace default may not get nodes" in log(cluster)


def test_an_idle_agent_asks_the_api_server_rarely(cluster: Cluster) -> None:
    """Ten minutes in ten seconds; docs/kubernetes.md has the numbers of `tests.kubernetes.cost`."""
    with cost.installed(cluster) as path, cost.agent(cluster, path, cost.SPEEDUP):
        requests = cost.idle(cluster, 600 / cost.SPEEDUP)
    assert {"get", "patch", "watch"} == {right.verb for right in requests}
    assert sum(requests.values()) <= 2 * IDLE_AN_HOUR


def test_the_condition_follows_the_node(cluster: Cluster) -> None:
    path = kubeconfig_of(cluster, "agent")
    for name, verb, resource in RIGHTS:
        role = ("clusterrole", name, f"--verb={verb}", f"--resource={resource}")
        cluster.kubectl("create", *role)
        bound = (f"--clusterrole={name}", "--serviceaccount=default:agent")
        cluster.kubectl("create", "clusterrolebinding", name, *bound)
    machine = simulated(cluster)

    def shown(status: str, reason: str) -> bool:
        found = condition(cluster)
        return (found.get("status"), found.get("reason")) == (status, reason)

    with agent(cluster, path):
        # An agent of the test before may have left the condition True.
        assert wait(lambda: '"state": "listed"' in status(cluster), TIMEOUT_S), state(cluster)
        assert wait(lambda: shown("True", "GPUsAreOffered"), TIMEOUT_S), log(cluster)
        assert condition(cluster)["message"] == f"the kubelet is offered {GPUS} of nvidia.com/gpu"
        node_changes.set_fault(machine, "hang", 120)
        try:
            assert wait(lambda: shown("False", "NvmlHung"), TIMEOUT_S), state(cluster)
        finally:
            node_changes.set_fault(machine, "hang", 0)
        assert wait(lambda: shown("True", "GPUsAreOffered"), TIMEOUT_S), str(condition(cluster))
        assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S)  # in the kubelet's period
        done = cluster.box.call("nvct", "cluster", "status", f"--kubeconfig={KUBECONFIG}")
        assert done.returncode == 0, done
        _, row = done.stdout.splitlines()
        words = row.split()  # between these are labels of the Node, if a test before has left some
        assert words[:2] == [NODE, f"gpu={GPUS}"], done
        assert words[2:][-3 - len(NO_AGENT) :] == ["True", "no", "pod", *NO_AGENT], done
    described = cluster.kubectl("describe", "node", NODE)
    assert TYPE in described
    assert "Warning  NvmlHung" in described, described
