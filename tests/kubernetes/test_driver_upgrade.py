# SPDX-License-Identifier: Apache-2.0
"""A driver manager replaces the driver of a node that nvct's agent serves, on a real kubelet."""

import json
import time
from collections.abc import Iterator

import pytest

from nvct_sim import node_changes
from tests.engines.checks import UUID
from tests.engines.releases import FULL
from tests.kubernetes import beside, device_plugin
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.beside import log
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    TIMEOUT_S,
    allocatable,
    asks,
    simulated,
)
from tests.kubernetes.driver_manager import DEPLOY, VERSIONS, KilledError, Manager
from tests.kubernetes.pods import run

pytestmark = [pytest.mark.slow, ON_ONE]


@pytest.fixture(scope="module")
def agent(node: Cluster) -> Iterator[Cluster]:
    """Run an agent beside the node's daemons; it follows the Node by the task `dra`."""
    node.label(*(f"{key}={value}" for key, value in DEPLOY.items()))
    with beside.agent(node):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), log(node)
        yield node


def offers(cluster: Cluster) -> bool:
    """Return whether the agent offers every GPU; the Node object shows it some seconds later."""
    status = json.loads(beside.ask(cluster))
    (plugin,) = (task for task in status["tasks"] if task["name"] == "device-plugin")
    parts = plugin["detail"]
    return status["nvml"]["state"] == "answers" and not any(one["unhealthy"] for one in parts)


def state(cluster: Cluster) -> str:
    return f"{beside.ask(cluster)}\n{log(cluster)}"


@pytest.mark.parametrize("killed_before", range(-1, 8) if FULL else (-1, 2, 6))
def test_the_driver_is_replaced(killed_before: int, agent: Cluster) -> None:
    (newer,) = set(VERSIONS) - {simulated(agent).state().driver}
    before = run(agent.api, "before", asks(1))
    assert UUID.findall(before.log), before
    agent.api.create(PODS, asks(1, f"{LIST}; sleep 600").manifest("works"))
    assert wait(lambda: UUID.findall(device_plugin.log(agent, "works")), TIMEOUT_S), state(agent)
    users = node_changes.module_users(simulated(agent))
    assert any("nvct-nvml" in user for user in users), "the agent has NVML open"
    manager = Manager(agent, newer)
    if killed_before >= 0:
        with pytest.raises(KilledError):
            manager.work(killed_before)
        if killed_before in (1, 2, 3):  # it may take a while until it runs again
            assert wait(lambda: allocatable(agent) == 0, TIMEOUT_S), state(agent)
    manager.work()
    loaded = time.monotonic()
    assert wait(lambda: offers(agent), TIMEOUT_S), state(agent)
    assert wait(lambda: allocatable(agent) == GPUS, TIMEOUT_S), state(agent)
    print(f"waited for nvct {manager.waited_s:.1f} s, back {time.monotonic() - loaded:.1f} s")
    after = run(agent.api, "after", asks(1, "nvidia-smi -q"))
    assert newer in after.log, f"{after}\n{state(agent)}"
    assert DEPLOY.items() <= agent.labels.items()
