# SPDX-License-Identifier: Apache-2.0
"""GPUs of a real node move between device plugin and DRA by a label of the Node, while pods run."""

import re
from collections.abc import Iterator

import pytest

from nvct.agent.core.resources_mode import CLASSIC, DRA, LABEL
from nvct.agent.device_plugin.resources import GPU
from tests.engines.box import PROGRAMS
from tests.engines.checks import UUID
from tests.kubernetes import beside
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.beside import log
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, LIST, allocatable, asks
from tests.kubernetes.dra import (
    TIMEOUT_S,
    asks_for_claims,
    claim,
    devices,
    forget_slices,
    log_of,
    make_classes,
    pod,
    runs,
)  # fmt: skip
from tests.kubernetes.pods import run

pytestmark = [pytest.mark.slow, ON_ONE]
STAYS = f"{LIST}; sleep 600"


@pytest.fixture(scope="module")
def agent(node: Cluster) -> Iterator[Cluster]:
    """Run an agent with both tasks beside the node's daemons."""
    make_classes(node, extended="")
    hook = f"{PROGRAMS}/nvidia-cdi-hook"
    with beside.agent(node, NVIDIA_CDI_HOOK_PATH=hook, DEVICE_LIST_STRATEGY="cdi-cri"):
        yield node
    node.label(f"{LABEL}-")
    forget_slices(node)


def gpus_of(cluster: Cluster, name: str) -> set[str]:
    assert wait(lambda: UUID.findall(log_of(cluster, name)), TIMEOUT_S), log(cluster)
    return set(UUID.findall(log_of(cluster, name)))


def test_the_gpus_move_while_pods_of_both_kinds_run(agent: Cluster) -> None:
    assert wait(lambda: allocatable(agent) == GPUS, TIMEOUT_S), log(agent)
    assert devices(agent) == {}
    with pod(agent, "old", asks(2, STAYS, GPU, runtime_class="")):
        held = gpus_of(agent, "old")
        agent.label(f"{LABEL}={DRA}")
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
            agent.label(f"{LABEL}={CLASSIC}")
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
    agent.label(f"{LABEL}={DRA}")
    assert wait(lambda: len(devices(agent)) == GPUS, TIMEOUT_S), log(agent)
    assert re.findall(r"Z error: .*", log(agent)) == []
