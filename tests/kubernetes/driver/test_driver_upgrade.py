# SPDX-License-Identifier: Apache-2.0
"""The chart beside a driver manager and a GPU operator of which only the driver is used.

The driver is in /run/nvidia/driver, and the Node has the operator's labels.
"""

import time
from collections.abc import Iterator

import pytest

from nvct_sim import node_changes
from tests.engines.checks import UUID
from tests.engines.releases import FULL
from tests.kubernetes import dra
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    GPUS,
    TIMEOUT_S,
    allocatable,
    asks,
    condition_of,
    installed,
    log_of,
    logs_of,
    state_of,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import simulated
from tests.kubernetes.driver_manager import OPERATOR, VERSIONS, KilledError, Manager
from tests.kubernetes.pods import Result, run

pytestmark = pytest.mark.slow

UPGRADES = "--set=driverUpgrades=true"
CLAIMS = "--set=dra.enabled=true"
WAYS = {
    "goes": (UPGRADES,),
    "stays": (CLAIMS, "--set=dra.unlabeledNodes=classic"),
    "claims": (UPGRADES, CLAIMS),
}


@pytest.fixture
def beside(node: Cluster) -> Iterator[Cluster]:
    """Return the cluster with the labels that the operator leaves."""
    node.label(*(f"{k}={v}" for k, v in OPERATOR.items()))
    yield node
    node.label(*(f"{key}-" for key in OPERATOR))


def offered(node: Cluster, way: str) -> int:
    """Return how many GPUs are offered, by the kubelet or in slices."""
    if way != "claims":
        return allocatable(node)
    return sum("taints" not in device for device in dra.offered(node))


def result(node: Cluster, way: str, name: str, script: str) -> Result:
    """Return the result of a pod that has a GPU."""
    if way != "claims":
        return run(node.api, name, asks("nvidia", script))
    dra.claim(node, name)
    try:
        return run(node.api, name, dra.asks_for_claims(name, script=script))
    finally:
        node.api.delete(f"{dra.CLAIMS}/{name}")


@ON_ONE
@pytest.mark.parametrize("way", WAYS if FULL else ("goes", "claims"))
def test_the_driver_is_replaced_under_the_chart(way: str, beside: Cluster) -> None:
    """Also where its pods stay, and only let go; and under a pod that has a claim."""
    node = beside
    (newer,) = set(VERSIONS) - {simulated(node).state().driver}
    with installed(node, *WAYS[way]):
        assert wait(lambda: offered(node, way) == GPUS, TIMEOUT_S), state_of(node)
        assert UUID.findall(result(node, way, "before", "nvidia-smi -L").log)
        assert node_changes.module_users(simulated(node)), "the worker has NVML open"
        works = "nvidia-smi -L; sleep 600"
        pod = asks("nvidia", works)
        if way == "claims":
            dra.claim(node, "works")
            pod = dra.asks_for_claims("works", script=works)
        node.api.create(PODS, pod.manifest("works"))
        assert wait(lambda: UUID.findall(log_of(node, "works")), TIMEOUT_S), state_of(node)
        manager = Manager(node, newer)
        assert bool(manager.clients()) is (way == "goes")
        with pytest.raises(KilledError):
            manager.work(killed_before=4)  # it has unloaded the module
        assert wait(lambda: offered(node, way) == 0, TIMEOUT_S), state_of(node)
        manager.work()
        loaded = time.monotonic()
        assert wait(lambda: offered(node, way) == GPUS, TIMEOUT_S), state_of(node)
        print(f"waited {manager.waited_s:.1f} s, back {time.monotonic() - loaded:.1f} s")
        assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
        after = result(node, way, "after", "nvidia-smi -q")
        assert newer in after.log, (after, state_of(node))
        if way == "claims":
            node.api.delete(f"{dra.CLAIMS}/works")


@ON_ONE
def test_a_module_that_is_kept_is_no_fault_while_the_folder_is_away(beside: Cluster) -> None:
    """A manager keeps the module where the digest of the driver's settings is the same."""
    node = beside
    manager = Manager(node, simulated(node).state().driver)
    with installed(node):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
        with pytest.raises(KilledError):
            manager.work(killed_before=4)
        assert wait(lambda: condition_of(node) == "False", TIMEOUT_S), state_of(node)
        time.sleep(5)
        said = logs_of(node)
        assert "False: the driver is being replaced" in said
        assert "libnvidia-ml.so" not in said.split("NVML is closed", 1)[1]
        manager.mount()
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)


@ON_ONE
def test_nvct_may_be_there_before_the_driver_container(beside: Cluster) -> None:
    """As after a boot: that folder is not even there."""
    node = beside
    manager = Manager(node, VERSIONS[0])
    node_changes.unload_module(simulated(node))
    manager.unmount()
    node.box.call("rmdir", "/run/nvidia/driver")
    with installed(node, UPGRADES):
        said = "the driver is expected in /run/nvidia/driver"
        assert wait(lambda: said in logs_of(node), TIMEOUT_S), state_of(node)
        assert allocatable(node) == 0
        node.box.call("mkdir", "/run/nvidia/driver")
        manager.work()
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        assert VERSIONS[0] in result(node, "goes", "first", "nvidia-smi -q").log
