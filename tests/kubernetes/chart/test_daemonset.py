# SPDX-License-Identifier: Apache-2.0
"""The toolkit alone as a DaemonSet, as the GPU operator has it, on a real cluster: installed, used and removed."""

from pathlib import Path

import pytest

from tests.engines.checks import UUID
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.device_plugin import RUNTIME_CLASSES
from tests.kubernetes.pods import Pod, run

pytestmark = pytest.mark.slow
TOOLKIT = Path(__file__).parents[1] / "toolkit.yaml"
LABEL = "nvidia.com/gpu.deploy.container-toolkit=true"
PODS = "/api/v1/namespaces/nvct/pods"
TIMEOUT_S = 60.0
ONE = {"NVIDIA_VISIBLE_DEVICES": "0"}


def test_pods_get_gpus_while_it_is_there_and_the_node_is_as_before_afterwards(
    node: Cluster,
) -> None:
    containerd, api = node.engine, node.api
    before = containerd.snapshot()
    node.kubectl("apply", f"--filename={RUNTIME_CLASSES}")
    node.kubectl("apply", f"--filename={TOOLKIT}")
    assert api.find(PODS) is not None
    node.label(LABEL)
    assert wait(lambda: _is_installed(node), TIMEOUT_S), _state(node)
    for name in ("nvidia", "nvidia-cdi", "nvidia-legacy"):
        pod = Pod(script="nvidia-smi -L", runtime_class=name, env=ONE)
        result = run(api, f"asks-{name}", pod)
        assert len(UUID.findall(result.log)) == 1, result
    assert containerd.snapshot() != before
    node.kubectl("delete", "--timeout=120s", f"--filename={TOOLKIT}")
    assert containerd.snapshot() == before
    assert wait(containerd.answers)
    refused = run(api, "too-late", Pod(script="true", runtime_class="nvidia", env=ONE))
    assert any("nvidia" in event for event in refused.events), refused
    node.kubectl("delete", f"--filename={RUNTIME_CLASSES}")
    node.label(f"{LABEL.partition('=')[0]}-")


def _is_installed(cluster: Cluster) -> bool:
    found = cluster.api.find(PODS)
    pods = found["items"] if found else []
    statuses = [s for pod in pods for s in pod["status"].get("containerStatuses", ())]
    return (
        bool(statuses)
        and all(status["ready"] for status in statuses)
        and (
            "waiting for a signal" in cluster.kubectl("logs", "--namespace=nvct", "daemonset/nvct")
        )
    )


def _state(cluster: Cluster) -> str:
    """Return the logs of the pods, and their state."""
    logs = ("logs", "--namespace=nvct", "--all-containers", "--prefix", "daemonset/nvct")
    return cluster.kubectl("describe", "pods", "--namespace=nvct") + cluster.kubectl(*logs)
