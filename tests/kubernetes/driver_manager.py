# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's driver manager and driver container, as far as others see them.

It does what k8s-driver-manager does (cmd/driver-manager/main.go), in the same order, and begins
again where it was killed.
"""

from __future__ import annotations

import contextlib
import time

from nvct.errors import HostError
from nvct_sim import node_changes
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import NODE
from tests.kubernetes.device_plugin import simulated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kubernetes.cluster import Cluster

VERSIONS = ("580.159.04", "581.1.2")
CLIENT = "nvidia.com/gpu.deploy.client"
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
    """The manager of one node, which loads a version.

    Attributes:
        waited_s: how long nvct has kept it waiting, for pods and for the module.
    """

    def __init__(self, cluster: Cluster, version: str) -> None:
        self.cluster, self.version = cluster, version
        self.waited_s = 0.0
        self.steps: tuple[Callable[[], None], ...] = (
            self.pause, self.wait_for_clients, self.evict, self.unload, self.install, self.resume,
            self.load,
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

    def clients(self) -> list[str]:
        """Return the pods that select the label, whatever its value."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}"
        found = self.cluster.api.find(path)
        assert found is not None
        return [
            pod["metadata"]["name"]
            for pod in found["items"]
            if CLIENT in pod["spec"].get("nodeSelector", {})
        ]

    def wait_for_clients(self) -> None:
        began = time.monotonic()
        assert wait(lambda: not self.clients(), WAIT_S), self.clients()
        self.waited_s += time.monotonic() - began

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
            users = node_changes.module_users(machine)
            assert time.monotonic() - began < WAIT_S, users
            time.sleep(0.2)
            self.waited_s += 0.2

    def install(self) -> None:
        node_changes.upgrade(simulated(self.cluster), self.version)

    def load(self) -> None:
        node_changes.reload_module(simulated(self.cluster))
