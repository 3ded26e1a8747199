# SPDX-License-Identifier: Apache-2.0
"""GPUs of a real node move between device plugin and DRA by a label of the Node, while pods run."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nvct.agent.core.resources_mode import CLASSIC, DEFAULT_ENV, DRA, LABEL
from nvct.agent.device_plugin.resources import GPU
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.engines.releases import of_release
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import GPUS, LIST, allocatable, asks
from tests.kubernetes.dra import (
    TIMEOUT_S,
    asks_for_claims,
    claim,
    devices,
    log_of,
    make_classes,
    pod,
    runs,
)  # fmt: skip
from tests.kubernetes.pods import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
STAYS = f"{LIST}; sleep 600"


@pytest.fixture(scope="module")
def agent(node: Cluster) -> Iterator[Cluster]:
    """Run an agent with both tasks beside the node's daemons."""
    make_classes(node, extended="")
    words = [f"{PROGRAMS}/python", "-I", "-m", "nvct.agent", "device-plugin", "dra"]
    env = {
        DEFAULT_ENV: CLASSIC, "NODE_NAME": NODE, "KUBECONFIG": KUBECONFIG,
        "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
        "NVIDIA_CDI_HOOK_PATH": f"{PROGRAMS}/nvidia-cdi-hook", "DEVICE_LIST_STRATEGY": "cdi-cri",
        "FAIL_ON_INIT_ERROR": "false",
    }  # fmt: skip
    process = node.box.start(["env", *(f"{key}={env[key]}" for key in env), *words], "both.log")
    try:
        yield node
    finally:
        node.box.call("pkill", "-f", "nvct.agent device-plugin dra")
        process.wait(TIMEOUT_S)


def log(cluster: Cluster) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (Path(cluster.box.work) / "both.log").read_text(errors="replace")
    return ""


def choose(cluster: Cluster, mode: str) -> None:
    cluster.kubectl("label", "--overwrite", "node", NODE, f"{LABEL}={mode}")


def gpus_of(cluster: Cluster, name: str) -> set[str]:
    assert wait(lambda: UUID.findall(log_of(cluster, name)), TIMEOUT_S), log(cluster)
    return set(UUID.findall(log_of(cluster, name)))


def test_the_gpus_move_while_pods_of_both_kinds_run(agent: Cluster) -> None:
    assert wait(lambda: allocatable(agent) == GPUS, TIMEOUT_S), log(agent)
    assert devices(agent) == {}
    with pod(agent, "old", asks(2, STAYS, GPU, runtime_class="")):
        held = gpus_of(agent, "old")
        choose(agent, DRA)
        assert wait(lambda: len(devices(agent)) == GPUS - 2, TIMEOUT_S), log(agent)
        assert wait(lambda: allocatable(agent) == 0, TIMEOUT_S)
        assert held.isdisjoint(devices(agent).values())
        agent.restart_kubelet()
        assert wait(lambda: len(devices(agent)) == GPUS - 2, TIMEOUT_S), log(agent)
        claim(agent, "new", count=3)
        with pod(agent, "new", asks_for_claims("new", script=STAYS)):
            claimed = gpus_of(agent, "new")
            assert len(claimed) == 3
            assert held.isdisjoint(claimed)
            assert runs(agent, "old")
            choose(agent, CLASSIC)
            # The kubelet still counts the two devices of the old pod as that pod's.
            assert wait(lambda: allocatable(agent) == GPUS - 3, TIMEOUT_S), log(agent)
            assert devices(agent) == {}
            more = run(agent.api, "more", asks(GPUS - 5, LIST, GPU, runtime_class=""))
            given = set(UUID.findall(more.log))
            assert len(given) == GPUS - 5, (more, log(agent))
            assert given.isdisjoint(held | claimed)
            assert runs(agent, "old")
            assert runs(agent, "new")
        agent.api.delete(f"{PODS}/new")
        assert wait(lambda: allocatable(agent) == GPUS, TIMEOUT_S), log(agent)
    choose(agent, DRA)
    assert wait(lambda: len(devices(agent)) == GPUS, TIMEOUT_S), log(agent)
    assert re.findall(r"Z error: .*", log(agent)) == []
