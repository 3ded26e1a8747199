# SPDX-License-Identifier: Apache-2.0
"""The image's programs as DaemonSets on a real kubelet: pods get the GPUs that they ask for."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct_sim.attach import DRIVER_ROOT
from tests.engines.checks import UUID
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, MANIFESTS, TIMEOUT_S, allocatable, asks
from tests.kubernetes.pods import Pod, run

pytestmark = [pytest.mark.slow, ON_ONE]
DAEMON_SETS = {
    "agent.yaml": ("nvct", "nvct-agent"),
    "agent-worker.yaml": ("nvct", "nvct-agent"),
}


def test_the_api_server_accepts_the_manifests(node: Cluster) -> None:
    node.kubectl("create", "namespace", "nvct")  # a dry run does not make it for the rest
    for file in sorted(MANIFESTS.glob("*.yaml")):
        answer = node.kubectl("apply", "--dry-run=server", f"--filename={file}")
        assert "(server dry run)" in answer
        assert "Warning" not in answer


def test_pods_get_gpus_of_the_agent_and_of_a_newer_one(node: Cluster) -> None:
    name = "agent.yaml"
    with _applied(node, name):
        _gives(node, name, 2)
        namespace, daemon_set = DAEMON_SETS[name]
        for verb in (("restart",), ("status", "--timeout=90s")):
            node.kubectl("rollout", *verb, f"--namespace={namespace}", f"daemonset/{daemon_set}")
        # Its probe has waited for the registration; the older pod may be ending.
        assert wait(lambda: _has_registered(node), TIMEOUT_S), _state(node, name)
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), _state(node, name)
        _gives(node, name, GPUS)


def test_pods_get_gpus_of_an_agent_without_privileges(node: Cluster) -> None:
    """NVML is in another container, whose end the agent survives."""
    name = "agent-worker.yaml"
    with _applied(node, name):
        _gives(node, name, 2)
        done = node.box.call("pkill", "-9", "-o", "-f", "nvct.agent.nvml.worker")
        assert done.returncode == 0, done
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), _state(node, name)
        _gives(node, name, GPUS)


def test_nodes_have_labels_by_which_pods_are_scheduled(node: Cluster) -> None:
    """By memory, ECC and compute capability, as a guide of 2018 wants it."""
    file = f"--filename={MANIFESTS}/gpu-feature-discovery.yaml"
    node.kubectl("apply", file)
    try:
        assert wait(lambda: node.labels.get(f"{GPU}.count") == str(GPUS), TIMEOUT_S), (
            node.kubectl("logs", "-n=kube-system", "daemonset/gpu-feature-discovery"),
        )
        fits = _wants(memory="8000", compute="8")
        assert run(node.api, "fits", Pod(script="echo runs", spec=fits)).lines == ["runs"]
        node.api.create(PODS, Pod(script="true", spec=_wants(memory="90000")).manifest("large"))
        reason = "node(s) didn't match Pod's node affinity"
        assert wait(lambda: any(reason in e for e in node.api.events("large")), TIMEOUT_S)
    finally:
        node.api.delete(f"{PODS}/large")
        node.kubectl("delete", "--timeout=120s", "--ignore-not-found", file)
    assert node.labels[f"{GPU}.count"] == str(GPUS)  # they stay


def _wants(memory: str, compute: str = "0") -> dict[str, Any]:
    """Return the part of a pod that asks for a node with ECC and more than so much of each."""
    rules = [
        {"key": f"{GPU}.memory", "operator": "Gt", "values": [memory]},
        {"key": f"{GPU}.compute.major", "operator": "Gt", "values": [compute]},
        {"key": f"{GPU}.ecc", "operator": "In", "values": ["true"]},
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return {"affinity": {"nodeAffinity": affinity}}


@contextlib.contextmanager
def _applied(node: Cluster, name: str) -> Iterator[None]:
    """Apply a manifest, and wait until the node has its GPUs."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((MANIFESTS / name).read_text()))
    pod = documents[-1]["spec"]["template"]["spec"]
    pod["runtimeClassName"] = "nvidia"  # its runc gives containers the simulated /proc and /sys
    for container in pod["containers"]:
        if container.get("args") == ["worker"]:
            container["args"].append(f"--driver-root=/driver-root{DRIVER_ROOT}")
    file = node.box.work / name
    file.write_text(yaml.safe_dump_all(documents))
    try:
        node.kubectl("apply", f"--filename={file}")
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), _state(node, name)
        yield
    finally:
        node.kubectl("delete", "--timeout=120s", "--ignore-not-found", f"--filename={file}")
    assert wait(lambda: allocatable(node) == 0, TIMEOUT_S)


def _gives(node: Cluster, name: str, count: int) -> None:
    """Assert that a pod sees exactly the GPUs that it asks for."""
    result = run(node.api, "asks", asks(count))
    assert len(set(UUID.findall(result.log))) == count, (result, _state(node, name))


def _has_registered(node: Cluster) -> bool:
    """Report whether there is one agent only, and whether it has registered."""
    found = node.api.find("/api/v1/namespaces/nvct/pods")
    if found is None or len(found["items"]) != 1:
        return False
    return "Registered device plugin" in node.kubectl("logs", "-n=nvct", "daemonset/nvct-agent")


def _state(cluster: Cluster, name: str) -> str:
    """Return the state of a DaemonSet's pods, and their logs."""
    namespace, daemon_set = DAEMON_SETS[name]
    pods = cluster.kubectl("describe", "pods", f"--namespace={namespace}")
    done = cluster.box.call(
        "kubectl", "--kubeconfig=/run/kubernetes/kubeconfig", "logs", f"--namespace={namespace}",
        "--prefix", f"daemonset/{daemon_set}",
    )  # fmt: skip
    return pods + done.stdout + done.stderr
