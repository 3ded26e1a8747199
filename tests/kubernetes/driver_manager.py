# SPDX-License-Identifier: Apache-2.0
"""A stand-in for NVIDIA's driver manager and driver container, as far as others see them.

It does what k8s-driver-manager 0.12 does (cmd/driver-manager/main.go) in the same order, and begins
again where it was killed. The true program was run against the same cluster: the driver's folder
is unmounted and the labels come back before another driver is there.
"""

import contextlib
import time
from collections.abc import Callable

from nvct.errors import HostError
from nvct_sim import node_changes
from tests.engines.box import DRIVER_ROOT
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import simulated

VERSIONS = ("580.159.04", "581.1.2")
CLIENT = "nvidia.com/gpu.deploy.client"
PAUSED = "paused-for-driver-upgrade"
DEPLOY = {
    f"nvidia.com/gpu.deploy.{name}": value
    for name, value in (
        ("client", "true"), ("device-plugin", "true"), ("dcgm", "false"), ("nvsm", "mine"),
    )
}  # fmt: skip
OPERATOR = {
    **DEPLOY,
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.deploy.dra-driver": "",  # by an earlier run of the manager
    **{
        f"nvidia.com/gpu.deploy.{name}": "true"
        for name in (
            "container-toolkit", "dcgm-exporter", "driver", "gpu-feature-discovery",
            "mig-manager", "node-status-exporter", "operator-validator",
        )
    },
}  # fmt: skip
"""The labels of a GPU operator, which it sets also for what is switched off."""
UNPAUSED = ("nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.deploy.node-status-exporter")
POLL_S = 5.0
"""How often the manager looks whether pods are gone."""
ASKS_S = 1.8
"""How long the manager asks for pods of the operator, which are not there, at 5 requests a second."""
WAIT_S = 10.0
"""How long the manager waits for nvct at most."""


class KilledError(Exception):
    """The manager was killed before a step."""


class Manager:
    """The manager of one node, which loads a version; the loaded one is kept as it is.

    Attributes:
        waited_s: how long nvct has kept it waiting, for pods and for the module.
    """

    def __init__(self, cluster: Cluster, version: str) -> None:
        self.cluster, self.version = cluster, version
        self.waited_s = 0.0

    @property
    def steps(self) -> tuple[Callable[[], None], ...]:
        """Return what there is to do, by the driver that is loaded now."""
        loaded = simulated(self.cluster).state().driver
        before = (self.pause, self.wait_for_clients)
        after = (self.unmount, self.resume, self.mount)
        if loaded == self.version:  # a digest of its settings says so
            return (*before, *after)
        if loaded == node_changes.NOT_LOADED:
            return (*after, self.load)
        return (*before, self.evict, self.unload, *after, self.load)

    def work(self, killed_before: int = -1) -> None:
        """Replace the driver; or end before a step."""
        for number, step in enumerate(self.steps):
            if number == killed_before:
                raise KilledError
            step()

    def label(self, change: Callable[[str], str]) -> None:
        found = self.cluster.api.get(f"/api/v1/nodes/{NODE}")
        labels = found["metadata"]["labels"]
        keys = [key for key in labels if ".deploy." in key and key not in UNPAUSED]
        words = [f"{key}={change(labels[key])}" for key in keys]
        self.cluster.label(*words)

    def pause(self) -> None:
        def paused(value: str) -> str:
            if value in ("", "false") or value.endswith(PAUSED):
                return value
            return PAUSED if value == "true" else f"{value}_{PAUSED}"

        self.label(paused)

    def clients(self) -> list[str]:
        """Return the pods of DaemonSets that select the label, whatever its value."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}"
        found = self.cluster.api.get(path)
        return [
            pod["metadata"]["name"]
            for pod in found["items"]
            if CLIENT in pod["spec"].get("nodeSelector", {})
            and any(owner["kind"] == "DaemonSet" for owner in pod["metadata"]["ownerReferences"])
        ]

    def wait_for_clients(self) -> None:
        time.sleep(ASKS_S)
        began = time.monotonic()
        while self.clients():
            assert time.monotonic() - began < WAIT_S, self.clients()
            time.sleep(POLL_S)
        self.waited_s += time.monotonic() - began

    def resume(self) -> None:
        self.label(lambda value: "true" if value == PAUSED else value.removesuffix(f"_{PAUSED}"))

    def evict(self) -> None:
        """Delete the pods, also those that have claims, and wait until they have ended."""
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

    def unmount(self) -> None:
        """Take the driver container's folder away, which stays as an empty one."""
        self.cluster.box.call("umount", "--recursive", "--lazy", DRIVER_ROOT)

    def mount(self) -> None:
        """Be the driver container: install, and show its folder."""
        node = node_changes.upgrade(simulated(self.cluster), self.version)
        for source, target in ((node.driver_root, DRIVER_ROOT), ("/dev", f"{DRIVER_ROOT}/dev")):
            done = self.cluster.box.call("mount", "--bind", str(source), target)
            assert done.returncode == 0, done

    def load(self) -> None:
        node_changes.reload_module(simulated(self.cluster))
