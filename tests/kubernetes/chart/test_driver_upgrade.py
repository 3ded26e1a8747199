# SPDX-License-Identifier: Apache-2.0
"""The chart beside a driver manager: its pods go with the label that the manager waits for."""

from __future__ import annotations

import time

import pytest

from nvct_sim import node_changes
from tests.engines.checks import UUID
from tests.kubernetes.api import wait
from tests.kubernetes.chart.lab import (
    GPUS,
    ON_ONE,
    TIMEOUT_S,
    allocatable,
    asks,
    condition_of,
    installed,
    state_of,
)
from tests.kubernetes.cluster import NODE
from tests.kubernetes.device_plugin import simulated
from tests.kubernetes.driver_manager import DEPLOY, VERSIONS, KilledError, Manager
from tests.kubernetes.pods import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster

pytestmark = pytest.mark.slow


@ON_ONE
@pytest.mark.parametrize("selects", [True, False])
def test_the_driver_is_replaced_under_the_chart(selects: bool, node: Cluster) -> None:  # noqa: FBT001
    """Also where its pods stay, and only let go."""
    labels = [f"{key}={value}" for key, value in DEPLOY.items()]
    node.kubectl("label", "--overwrite", "node", NODE, *labels)
    (newer,) = set(VERSIONS) - {simulated(node).state().driver}
    words = ("--set=dra.enabled=true", "--set=dra.unlabeledNodes=classic",
             f"--set=driverUpgrades={str(selects).lower()}")  # fmt: skip
    with installed(node, *words):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        assert UUID.findall(run(node.api, "before", asks("nvidia")).log)
        assert node_changes.module_users(simulated(node)), "the worker has NVML open"
        manager = Manager(node, newer)
        assert bool(manager.clients()) is selects
        with pytest.raises(KilledError):
            manager.work(killed_before=4)
        assert wait(lambda: allocatable(node) == 0, TIMEOUT_S), state_of(node)
        manager.work()
        loaded = time.monotonic()
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        print(f"waited {manager.waited_s:.1f} s, back {time.monotonic() - loaded:.1f} s")
        assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
        after = run(node.api, "after", asks("nvidia", "nvidia-smi -q"))
        assert newer in after.log, after
