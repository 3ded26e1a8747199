# SPDX-License-Identifier: Apache-2.0
"""The condition nvct.dev/GPUReady on a real API server, written by an agent on the node."""

import contextlib
from typing import Any

import pytest

from nvct.agent.condition.condition import TYPE
from nvct_sim import node_changes
from tests.kubernetes import beside, cost
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import wait
from tests.kubernetes.beside import log
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S, allocatable, simulated

pytestmark = [pytest.mark.slow, ON_ONE]
IDLE_AN_HOUR = 42
NO_AGENT = ["of", "the", "agent", "runs", "here"]
TASKS = ("device-plugin", "condition")
RIGHTS = (("get", "nodes"), ("patch", "nodes/status"), ("create", "events"))


def agent(cluster: Cluster, kubeconfig: str) -> contextlib.AbstractContextManager[object]:
    """Run the agent on the node."""
    return beside.agent(cluster, TASKS, kubeconfig)


def condition(cluster: Cluster) -> dict[str, Any]:
    conditions = cluster.api.get(cluster.path)["status"]["conditions"]
    return next((one for one in conditions if one["type"] == TYPE), {})


def state(cluster: Cluster) -> str:
    """Return what explains a condition."""
    return f"{condition(cluster)}\n{beside.ask(cluster)}\n{log(cluster)}"


def test_without_rights_the_log_says_which_and_gpus_are_offered(cluster: Cluster) -> None:
    with agent(cluster, kubeconfig_of(cluster, "nobody")):
        assert wait(lambda: "may not get nodes" in log(cluster), TIMEOUT_S), log(cluster)
        assert wait(lambda: allocatable(cluster) == GPUS, TIMEOUT_S), log(cluster)
    assert "service account nobody of namespace default may not get nodes" in log(cluster)


def test_an_idle_agent_asks_the_api_server_rarely(cluster: Cluster) -> None:
    """Ten minutes in ten seconds; docs/kubernetes.md has the numbers of `tests.kubernetes.cost`."""
    with cost.installed(cluster) as path, cost.agent(cluster, path, cost.SPEEDUP):
        requests = cost.idle(cluster, 600 / cost.SPEEDUP)
    # A heartbeat is due after eight to twelve minutes, so it may not be among them.
    assert {"get", "watch"} <= {right.verb for right in requests} <= {"get", "patch", "watch"}
    assert sum(requests.values()) <= 2 * IDLE_AN_HOUR


def test_the_condition_follows_the_node(cluster: Cluster) -> None:
    path, machine = kubeconfig_of(cluster, "condition", *RIGHTS), simulated(cluster)

    def shown(status: str, reason: str) -> bool:
        found = condition(cluster)
        return (found.get("status"), found.get("reason")) == (status, reason)

    with agent(cluster, path):
        # An agent of the test before may have left the condition True.
        assert wait(lambda: '"state": "listed"' in beside.ask(cluster), TIMEOUT_S), state(cluster)
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
