# SPDX-License-Identifier: Apache-2.0
"""A driver manager replaces the driver of a node that nvct's agent serves, on a real kubelet.

The manager is a stand-in: it does what NVIDIA's does (k8s-driver-manager, cmd/driver-manager), in
the same order, and begins again where it was killed.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from nvct.agent.core.resources_mode import CLASSIC, DEFAULT_ENV
from nvct.errors import HostError
from nvct_sim import node_changes
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.engines.releases import of_release
from tests.kubernetes import device_plugin
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    TIMEOUT_S,
    allocatable,
    asks,
    simulated,
)
from tests.kubernetes.pods import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kubernetes.cluster import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
VERSIONS = ("580.159.04", "581.1.2")
PAUSED = "paused-for-driver-upgrade"
DEPLOY = {
    f"nvidia.com/gpu.deploy.{name}": value
    for name, value in (
        ("client", "true"), ("device-plugin", "true"), ("dcgm", "false"), ("nvsm", "mine"),
    )
}  # fmt: skip
WAIT_S = 10.0
"""How long the manager waits for nvct at most."""


class KilledError(Exception):
    """The manager was killed before a step."""


class Manager:
    """NVIDIA's driver manager and driver container, as far as others see them."""

    def __init__(self, cluster: Cluster, version: str) -> None:
        self.cluster, self.version = cluster, version
        self.waited_s = 0.0
        self.steps: tuple[Callable[[], None], ...] = (
            self.pause, self.evict, self.unload, self.install, self.resume, self.load,
        )  # fmt: skip

    def work(self, killed_before: int = -1) -> None:
        """Replace the driver; or end before a step."""
        for number, step in enumerate(self.steps):
            if number == killed_before:
                raise KilledError
            step()

    def label(self, change: Callable[[str], str]) -> None:
        found = self.cluster.api.find(f"/api/v1/nodes/{NODE}")
        assert found is not None
        labels = found["metadata"]["labels"]
        words = [f"{key}={change(labels[key])}" for key in DEPLOY]
        self.cluster.kubectl("label", "--overwrite", "node", NODE, *words)

    def pause(self) -> None:
        def paused(value: str) -> str:
            if value in ("", "false") or value.endswith(PAUSED):
                return value
            return PAUSED if value == "true" else f"{value}_{PAUSED}"

        self.label(paused)

    def resume(self) -> None:
        self.label(lambda value: "true" if value == PAUSED else value.removesuffix(f"_{PAUSED}"))

    def evict(self) -> None:
        self.cluster.kubectl("delete", "pods", "--all", "--wait", "--grace-period=1")

    def unload(self) -> None:
        machine, began = simulated(self.cluster), time.monotonic()
        while machine.state().driver != node_changes.NOT_LOADED:
            with contextlib.suppress(HostError):  # it is busy
                node_changes.unload_module(machine)
                return
            self.waited_s = time.monotonic() - began
            users = node_changes.module_users(machine)
            assert self.waited_s < WAIT_S, f"{users}\n{log(self.cluster)}"
            time.sleep(0.2)

    def install(self) -> None:
        node_changes.upgrade(simulated(self.cluster), self.version)

    def load(self) -> None:
        node_changes.reload_module(simulated(self.cluster))


@pytest.fixture(scope="module")
def agent(node: Cluster) -> Iterator[Cluster]:
    """Run an agent beside the node's daemons; it follows the Node by the task `dra`."""
    tasks = "device-plugin", "dra"
    words = [f"{PROGRAMS}/python", "-I", "-m", "nvct.agent", *tasks]
    env = {
        DEFAULT_ENV: CLASSIC, "NODE_NAME": NODE, "KUBECONFIG": KUBECONFIG,
        "NVIDIA_DRIVER_ROOT": DRIVER_ROOT, "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
        "FAIL_ON_INIT_ERROR": "false",
    }  # fmt: skip
    node.kubectl("label", "node", NODE, *(f"{key}={value}" for key, value in DEPLOY.items()))
    process = node.box.start(["env", *(f"{key}={env[key]}" for key in env), *words], "agent.log")
    try:
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), log(node)
        yield node
    finally:
        node.box.call("pkill", "-f", "nvct.agent device-plugin dra")
        process.wait(TIMEOUT_S)


def log(cluster: Cluster) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (Path(cluster.box.work) / "agent.log").read_text(errors="replace")
    return ""


def state(cluster: Cluster) -> str:
    return f"{cluster.box.call('nvct', 'agent', '--status').stdout}\n{log(cluster)}"


@pytest.mark.parametrize("killed_before", range(-1, 6))
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
        if killed_before in (1, 2):  # it may take a while until it runs again
            assert wait(lambda: allocatable(agent) == 0, TIMEOUT_S), state(agent)
    manager.work()
    loaded = time.monotonic()
    assert wait(lambda: allocatable(agent) == GPUS, TIMEOUT_S), state(agent)
    print(f"waited for nvct {manager.waited_s:.1f} s, back {time.monotonic() - loaded:.1f} s")
    after = run(agent.api, "after", asks(1, "nvidia-smi -q"))
    assert newer in after.log, f"{after}\n{state(agent)}"
    found = agent.api.find(f"/api/v1/nodes/{NODE}")
    assert found is not None
    assert DEPLOY.items() <= found["metadata"]["labels"].items()
