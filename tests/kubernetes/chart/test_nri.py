# SPDX-License-Identifier: Apache-2.0
"""The chart with the NRI plugin: pods get GPUs, and no file of the engine changes."""

import pytest

from nvct.agent.device_plugin.resources import GPU
from tests.engines.checks import UUID
from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import (
    GPUS,
    LIST,
    TIMEOUT_S,
    allocatable,
    installed,
    logs_of,
    state_of,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pods import Pod, run_all

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
