# SPDX-License-Identifier: Apache-2.0
"""GPUs that fail and recover, on a real kubelet: its list, Events, metrics; nothing is restarted.

One agent runs for all tests; each uses GPUs of its own. The seconds until the kubelet's list is
right are printed.
"""

import contextlib
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.paths import AGENT_DIR
from nvct_sim import node_changes, play, state, tree
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.kubernetes import beside
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import DEFAULT, PODS, wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import (
    GPUS,
    TIMEOUT_S,
    asks,
    log,
    simulated,
)
from tests.kubernetes.listed import kubelet
from tests.kubernetes.tasks.test_condition import RIGHTS

pytestmark = [pytest.mark.slow, ON_ONE]
WATCHED = "XID errors are watched from now on"
PROBATION_S = 1
SCRIPT = """
[[step]]
at = 0
gpu = 1
set = {ecc_uncorrected = 1}

[[step]]
at = 0
do = "xid 1 48"             # a double-bit error

[[step]]
at = 0
gpu = 2
set = {remap_pending = 1}

[[step]]
at = 0
gpu = 3
set = {hang = 600}

[[step]]
at = 0
do = "lose 4"
"""
END = """
[[step]]
at = 0
do = "reset 1"

[[step]]
at = 0
gpu = 2
set = {remap_failed = 1}

[[step]]
at = 0
gpu = 3
set = {hang = 0}

[[step]]
at = 0
do = "find 4"
"""


class Lab:
    """A cluster whose node has an agent."""

    tasks = "device-plugin,condition"

    def __init__(self, cluster: Cluster, kubeconfig: str) -> None:
        self.cluster = cluster
        self.machine = simulated(cluster)
        self.kubeconfig = kubeconfig
        self.starts = 0

    def start(self, *gpus: int, **more: str) -> None:
        """Start the agent; wait until the kubelet has one of these numbers of GPUs, if any."""
        settings = {
            "KUBECONFIG": self.kubeconfig, "NODE_NAME": NODE, "NVIDIA_DRIVER_ROOT": DRIVER_ROOT,
            "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
            "HEALTH_PROBATION": str(PROBATION_S), **more,
        }  # fmt: skip
        words = [f"{key}={value}" for key, value in settings.items()]
        agent = [f"{PROGRAMS}/nvct", "agent", f"--tasks={self.tasks}"]
        self.starts += 1
        self.process = self.cluster.box.start(["env", *words, *agent], self.log_name())
        if gpus:
            assert wait(lambda: WATCHED in self.log(), TIMEOUT_S), self.log()
            assert wait(lambda: self.listed() in gpus, TIMEOUT_S), self.log()

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """At the end, the driver is as it was, and the agent's files are gone."""
        with state.change(self.machine.state_file) as now:
            before = copy.deepcopy(now.records)
        try:
            yield
        finally:
            self.end()
            with state.change(self.machine.state_file) as now:
                now.records[:] = before
            self.cluster.box.call("sh", "-c", f"rm -rf {AGENT_DIR}/*")

    def kill(self, number: str) -> None:
        self.cluster.box.call("pkill", number, "-f", "nvct.agent")

    def end(self) -> None:
        self.kill("-TERM")
        with contextlib.suppress(Exception):
            self.process.wait(TIMEOUT_S)

    def log_name(self) -> str:
        return f"{type(self).__module__}-{self.starts}.log"

    def log(self) -> str:
        return self.cluster.log(self.log_name())

    def run(self, name: str, grace_s: int = 0, **labels: str) -> int:
        """Start a pod with one GPU, and return the GPU's index; it ends after its grace period."""
        script = "echo $NVIDIA_VISIBLE_DEVICES; sleep 600"
        manifest = asks(1, script, runtime_class="").manifest(name)
        manifest["metadata"]["labels"] = labels
        manifest["spec"]["terminationGracePeriodSeconds"] = grace_s
        self.cluster.api.create(PODS, manifest)
        self.until(lambda: log(self.cluster, name).startswith("GPU-"), f"{name} has a GPU")
        path = f"{PODS}/{name}"  # its status may come after its output
        self.until(lambda: self.cluster.api.get(path)["status"]["phase"] == "Running", name)
        return self.uuids.index(log(self.cluster, name).strip())

    @property
    def uuids(self) -> list[str]:
        """Return the UUIDs of the GPUs, in their order."""
        return [tree.gpu_uuid(self.machine.name, index) for index in range(GPUS)]

    def fail(self, gpu: int, **fields: str | int) -> None:
        """Let a GPU have a double-bit error."""
        node_changes.set_gpu(self.machine, gpu, ecc_uncorrected=1, **fields)
        node_changes.apply(self.machine, "xid", [str(gpu), "48"])

    def listed(self, name: str = GPU) -> int | None:
        return kubelet(self.cluster, name)

    def until(self, holds: Callable[[], object], what: str, limit_s: float = TIMEOUT_S) -> None:
        began = time.monotonic()
        if not wait(holds, limit_s):
            pytest.fail(f"{what}: {beside.ask(self.cluster)}\n{self.listed()}\n{self.log()}")
        print(f"{what}: {time.monotonic() - began:.1f} s")

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(beside.ask(self.cluster) or "{}").get("health", {})
        return found

    def states(self, *gpus: int) -> dict[int, str]:
        """Return state and action of the devices of GPUs that are not healthy, by their index."""
        uuids = {self.uuids[index]: index for index in gpus}
        return {
            uuids[device["uuid"]]: f"{device['state']} {device['action']}"
            for device in self.health().get("devices", ())
            if device["uuid"] in uuids
        }

    def play(self, script: str, folder: Path) -> None:
        file = folder / "script.toml"
        file.write_text(script, encoding="utf-8")
        play.play(self.machine, play.read(file), print)

    def events(self, name: str) -> dict[str, str]:
        """Return the messages of an object's Events by reason."""
        found = self.cluster.api.get(
            f"{DEFAULT}/events?fieldSelector=involvedObject.name%3D{name}"
        )
        return {event["reason"]: event["message"] for event in found["items"]}

    def metrics(self) -> str:
        return beside.ask(self.cluster, "/metrics")


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Iterator[Lab]:
    made = Lab(cluster, kubeconfig_of(cluster, "health", *RIGHTS, ("get", "pods")))
    with made.renewed():
        made.start(GPUS)
        yield made


def test_an_application_takes_no_gpu_away_and_its_pod_is_told(lab: Lab) -> None:
    before = lab.listed()
    try:
        index = lab.run("train")
        uuid = lab.uuids[index]
        node_changes.apply(lab.machine, "xid", [str(index), "31"])
        lab.until(lambda: "GPUApplicationError" in lab.events("train"), "Event of the pod")
        message = lab.events("train")["GPUApplicationError"]
        assert message == f"{uuid} reported XID 31 (GPU memory page fault); the GPU still works"
        assert lab.events(NODE)["GPUApplicationError"] == message
        assert lab.listed() == before
        assert lab.states(index) == {}
    finally:
        lab.cluster.api.delete(f"{PODS}/train")


def test_failures_take_gpus_away_and_what_recovers_comes_back(lab: Lab, tmp_path: Path) -> None:
    gpus = lab.listed()
    assert gpus is not None
    lab.play(SCRIPT, tmp_path)
    lab.until(lambda: lab.listed() == gpus - 3, "a double-bit error, a hang, a lost GPU")
    expected = {
        1: "unhealthy reset", 2: "suspect watch", 3: "unhealthy reset", 4: "unhealthy reboot"
    }  # fmt: skip
    lab.until(lambda: lab.states(*expected) == expected, "states")
    lab.until(lambda: "GPUUnhealthy" in lab.events(NODE), "Event of the Node")

    lab.play(END, tmp_path)
    gone = {2: "unhealthy replace", 4: "unhealthy reboot"}
    lab.until(
        lambda: lab.states(*expected) == gone, "a reset, the end of the hang; a failed remap"
    )
    lab.until(lambda: lab.listed() == gpus - 2, "the kubelet's list")
    lab.until(lambda: "GPUHealthy" in lab.events(NODE), "Event of the Node")

    lines = lab.metrics().splitlines()
    uuid = lab.uuids[1]
    labels = f'{{UUID="{uuid}",GPU_I_ID="",GPU_CI_ID=""'
    assert f"nvct_health_failures_total{labels}}} 1" in lines
    assert f"nvct_health_returns_total{labels}}} 1" in lines
    assert f'nvct_health_state{labels},state="healthy"}} 1' in lines

    began = time.monotonic()
    lab.kill("-KILL")
    lab.start(gpus - 2)
    print(f"a new agent: {time.monotonic() - began:.1f} s")


def test_a_gpu_that_flaps_is_out_with_its_fourth_error(lab: Lab) -> None:
    for _ in range(3):
        lab.fail(5)
        lab.until(lambda: lab.states(5).get(5) == "unhealthy reset", "an error")
        node_changes.reset_gpu(lab.machine, 5)
        lab.until(lambda: not lab.states(5), "a reset")
    lab.fail(5)
    lab.until(lambda: lab.states(5).get(5) == "unhealthy replace", "the fourth error")
    lab.until(lambda: "GPUFlapping" in lab.events(NODE), "Event of the Node")


def test_a_reset_by_nvct_gives_a_failed_gpu_back(lab: Lab) -> None:
    gpus = lab.listed()
    assert gpus is not None
    try:
        index = lab.run("victim")
        uuid = lab.uuids[index]
        lab.fail(index, recovery="reset")
        lab.until(lambda: lab.listed() == gpus - 1, "the kubelet's list falls")
        lab.until(lambda: "GPUUnhealthy" in lab.events("victim"), "Event of the pod")
        assert uuid in lab.events("victim")["GPUUnhealthy"]
    finally:
        lab.cluster.api.delete(f"{PODS}/victim")
    assert lab.states(index) == {index: "unhealthy reset"}

    config = lab.cluster.box.work / "reset.toml"
    config.write_text(f'[nvidia-container-cli]\nroot = "{DRIVER_ROOT}"\n')
    words = ("--config", str(config), "reset", str(index))
    done = lab.cluster.box.call(f"{PROGRAMS}/nvct", *words)

    assert done.stdout == f"reset GPU {index}, {uuid}\n", done
    lab.until(lambda: lab.listed() == gpus, "the kubelet's list rises")
    lab.until(lambda: lab.states(index) == {}, "the GPU is healthy")
    lab.until(lambda: "GPUProbation" in lab.events(NODE), "Event of the Node")
