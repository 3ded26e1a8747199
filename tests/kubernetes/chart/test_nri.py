# SPDX-License-Identifier: Apache-2.0
"""The chart with the NRI plugin: pods get GPUs, and no file of the engine changes."""

import pytest

from nvct.agent.device_plugin.resources import GPU
from tests.engines.checks import UUID
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CHART,
    GPUS,
    IN_NAMESPACE,
    LIST,
    TIMEOUT_S,
    allocatable,
    asks,
    gpus_of,
    installed,
    log_of,
    logs_of,
    state_of,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import Pod, run, run_all

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("cluster", ["forky"], indirect=True)]
SMI = f"{LIST}; sleep 3"
POD = "nvidia.cdi.k8s.io/pod"


def test_pods_get_gpus_on_an_engine_that_nobody_has_configured(node: Cluster) -> None:
    before = node.engine.snapshot()
    audit = ("--set", "nri.enabled=true", "--set", "nri.givenByKubelet=audit")
    with installed(node, *audit):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
        assert wait(lambda: "connected: containerd" in logs_of(node), TIMEOUT_S), state_of(node)
        limits = {"resources": {"limits": {GPU: 1}}}
        pods = {
            "by-resource": Pod(script=SMI, container=limits),
            "by-annotation": Pod(script=SMI, annotations={POD: "nvidia.com/gpu=0"}),
            "unknown": Pod(script=SMI, annotations={POD: "nvidia.com/gpu=99"}),
            "image-says-all": Pod(script=SMI, env={"NVIDIA_VISIBLE_DEVICES": "all"}),
        }
        results = run_all(node.api, pods)
        said = logs_of(node)
        assert node.engine.snapshot() == before
    counts = {name: len(set(UUID.findall(result.log))) for name, result in results.items()}
    assert counts == {
        "by-resource": 1, "by-annotation": 1, "unknown": 0, "image-says-all": 0,
    }, (results, said)  # fmt: skip
    assert "has no device '99'" in str(results["unknown"].events)
    assert "audit: default/by-annotation/main" in said
    assert "audit: default/by-resource/main" not in said
    assert node.engine.snapshot() == before


def test_a_new_plugin_and_the_switch_leave_pods_alone(node: Cluster) -> None:
    """From the engine's files to the plugin, a plugin after another, and back."""
    untouched = node.engine.snapshot()
    path, loop = f"{PODS}/stays", f"while {LIST}; do sleep 1; done"
    with installed(node, "--set", "nri.enabled=true"):
        assert wait(lambda: "connected: containerd" in logs_of(node), TIMEOUT_S), state_of(node)
        stays = Pod(script=loop, annotations={POD: "nvidia.com/gpu=0"})
        node.api.create(PODS, stays.manifest("stays"))
        try:
            assert wait(lambda: UUID.findall(log_of(node, "stays")), TIMEOUT_S), state_of(node)
            assert node.engine.snapshot() == untouched
            assert wait(lambda: 'pod="stays"' in since(node), TIMEOUT_S), state_of(node)
            node.kubectl("rollout", "restart", *IN_NAMESPACE, "daemonset/nvct-nri")
            results = run_all(
                node.api,
                {
                    f"meanwhile-{n}": Pod(script=SMI, annotations=stays.annotations)
                    for n in range(4)
                },
            )
            node.kubectl("rollout", "status", *IN_NAMESPACE, "daemonset/nvct-nri", "--timeout=90s")
            for name, result in results.items():
                assert len(set(UUID.findall(result.log))) == 1, (name, result)
            switch(node, on=False)
            assert wait(lambda: node.engine.snapshot() != untouched, TIMEOUT_S), state_of(node)
            assert gpus_of(run(node.api, "by-files", asks("nvidia"))) == 1
            switch(node, on=True)
            assert wait(lambda: node.engine.snapshot() == untouched, TIMEOUT_S), state_of(node)
            after = node.api.get(path)
            (status,) = after["status"]["containerStatuses"]
            assert (status["ready"], status["restartCount"]) == (True, 0)
            assert len(set(log_of(node, "stays").splitlines())) == 1, "always the same GPU"
        finally:
            node.api.delete(path)
            assert wait(lambda: node.api.find(path) is None, TIMEOUT_S)


def since(node: Cluster) -> str:
    """Return the exporter's lines about since when containers have GPUs."""
    address = node.kubectl("get", "pods", *IN_NAMESPACE, "--output=jsonpath={.items[0].status.podIP}",
                           "--selector=app.kubernetes.io/component=agent")  # fmt: skip
    text = node.box.call("curl", "--silent", f"http://{address.strip()}:9400/metrics").stdout
    name = "nvct_container_gpu_start_time_seconds{"
    return "\n".join(line for line in text.splitlines() if line.startswith(name))


def switch(node: Cluster, *, on: bool) -> None:
    """Upgrade the release to or from the plugin, and wait until its pods are the new ones."""
    node.helm(
        "upgrade", "nvct", str(CHART), *IN_NAMESPACE, f"--set=nri.enabled={str(on).lower()}",
        "--wait", "--reset-then-reuse-values", "--timeout=120s",
    )  # fmt: skip
    if on:
        assert wait(lambda: "connected: containerd" in logs_of(node), TIMEOUT_S), state_of(node)
