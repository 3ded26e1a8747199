# SPDX-License-Identifier: Apache-2.0
"""GPUs that fail and recover, on a real kubelet: its list, Events, metrics; nothing is restarted.

One agent runs for all tests; each uses GPUs of its own. The seconds until the kubelet's list is
right are printed.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct_sim import node_changes, play, tree
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import TIMEOUT_S, asks, log, simulated, smi
from tests.kubernetes.listed import kubelet
from tests.kubernetes.test_condition import RIGHTS, kubeconfig_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
WATCHED = "XID errors are watched from now on"
PROBATION_S = 1
PORT = 9409
SMALL = "nvidia.com/mig-1g.10gb"
WHOLE = 7
"""GPUs that are not in MIG mode; GPU 7 is."""
MIG = 7
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
FETCH = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:{}/metrics').read().decode())"
)


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
            "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT, "MIG_STRATEGY": "mixed",
            "HEALTH_PROBATION": str(PROBATION_S), **more,
        }  # fmt: skip
        words = [f"{key}={value}" for key, value in settings.items()]
        agent = [f"{PROGRAMS}/nvct", "agent", f"--tasks={self.tasks}"]
        self.starts += 1
        self.process = self.cluster.box.start(
            ["env", *words, *agent, f"--listen=127.0.0.1:{PORT}"], self.log_name()
        )
        if gpus:
            assert wait(lambda: WATCHED in self.log(), TIMEOUT_S), self.log()
            assert wait(lambda: self.listed() in gpus, TIMEOUT_S), self.log()

    def kill(self, number: str) -> None:
        self.cluster.box.call("pkill", number, "-f", "nvct.agent")

    def end(self) -> None:
        self.kill("-TERM")
        with contextlib.suppress(Exception):
            self.process.wait(TIMEOUT_S)

    def log_name(self) -> str:
        return f"health-{self.starts}.log"

    def log(self) -> str:
        return (self.cluster.box.work / self.log_name()).read_text(encoding="utf-8")

    def listed(self, name: str = GPU) -> int | None:
        return kubelet(self.cluster, name)

    def until(self, holds: Callable[[], object], what: str, limit_s: float = TIMEOUT_S) -> None:
        began = time.monotonic()
        assert wait(holds, limit_s), (what, self.health(), self.listed(), self.log())
        print(f"{what}: {time.monotonic() - began:.1f} s")

    def health(self) -> dict[str, Any]:
        done = self.cluster.box.call(f"{PROGRAMS}/nvct", "agent", "--status")
        found: dict[str, Any] = json.loads(done.stdout)["health"] if done.stdout else {}
        return found

    def states(self, *gpus: int) -> dict[int, str]:
        """Return state and action of the devices of GPUs that are not healthy, by their index."""
        uuids = {tree.gpu_uuid(self.machine.name, index): index for index in gpus}
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
        path = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D"
        found = self.cluster.api.find(f"{path}{name}")
        assert found is not None
        return {event["reason"]: event["message"] for event in found["items"]}

    def metrics(self) -> str:
        words = (f"{PROGRAMS}/python", "-I", "-c", FETCH.format(PORT))
        return self.cluster.box.call(*words).stdout


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Iterator[Lab]:
    path = kubeconfig_of(cluster, "health")
    for name, verb, resource in (*RIGHTS, ("health-pods", "get", "pods")):
        cluster.kubectl("create", "clusterrole", name, f"--verb={verb}", f"--resource={resource}")
        bound = (f"--clusterrole={name}", "--serviceaccount=default:health")
        cluster.kubectl("create", "clusterrolebinding", name, *bound)
    smi(cluster, "-i", str(MIG), "-mig", "1")
    smi(cluster, "mig", "-i", str(MIG), "-cgi", "1g.10gb,1g.10gb", "-C")
    made = Lab(cluster, path)
    made.start(WHOLE)
    try:
        yield made
    finally:
        made.end()


def test_an_application_takes_no_gpu_away_and_its_pod_is_told(lab: Lab) -> None:
    before = lab.listed()
    script = "echo $NVIDIA_VISIBLE_DEVICES; sleep 600"
    lab.cluster.api.create(PODS, asks(1, script, runtime_class="").manifest("train"))
    try:
        lab.until(lambda: log(lab.cluster, "train").startswith("GPU-"), "a pod has a GPU")
        uuid = log(lab.cluster, "train").strip()
        index = [tree.gpu_uuid(lab.machine.name, number) for number in range(8)].index(uuid)
        node_changes.apply(lab.machine, "xid", [str(index), "31"])
        lab.until(lambda: "GPUApplicationError" in lab.events("train"), "Event of the pod")
        message = lab.events("train")["GPUApplicationError"]
        assert message == f"{uuid} reported XID 31 (GPU memory page fault); the GPU works on"
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
    uuid = tree.gpu_uuid(lab.machine.name, 1)
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
        node_changes.set_gpu(lab.machine, 5, ecc_uncorrected=1)
        node_changes.apply(lab.machine, "xid", ["5", "48"])
        lab.until(lambda: lab.states(5).get(5) == "unhealthy reset", "an error")
        node_changes.reset_gpu(lab.machine, 5)
        lab.until(lambda: not lab.states(5), "a reset")
    node_changes.apply(lab.machine, "xid", ["5", "48"])
    lab.until(lambda: lab.states(5).get(5) == "unhealthy replace", "the fourth error")
    lab.until(lambda: "GPUFlapping" in lab.events(NODE), "Event of the Node")


def test_an_error_of_a_mig_instance_takes_that_one_away(lab: Lab) -> None:
    lab.until(lambda: lab.listed(SMALL) == 2, "two MIG devices")
    first = lab.machine.state().find("gi", gpu=MIG)[0].fields["id"]
    node_changes.apply(lab.machine, "xid", [str(MIG), "48", f"gi={first}", "ci=0"])
    lab.until(lambda: lab.listed(SMALL) == 1, "one is gone")
    smi(lab.cluster, "mig", "-i", str(MIG), "-gi", first, "-dci")
    smi(lab.cluster, "mig", "-i", str(MIG), "-gi", first, "-dgi")
    lab.until(lambda: not lab.states(MIG), "the instance is destroyed")
    smi(lab.cluster, "mig", "-i", str(MIG), "-cgi", "1g.10gb", "-C")
    lab.until(lambda: lab.listed(SMALL) == 2, "it is made again")


def test_a_reset_by_nvct_gives_a_failed_gpu_back(lab: Lab) -> None:
    gpus = lab.listed()
    assert gpus is not None
    script = "echo $NVIDIA_VISIBLE_DEVICES; sleep 600"
    lab.cluster.api.create(PODS, asks(1, script, runtime_class="").manifest("victim"))
    try:
        lab.until(lambda: log(lab.cluster, "victim").startswith("GPU-"), "a pod has a GPU")
        uuid = log(lab.cluster, "victim").strip()
        index = [tree.gpu_uuid(lab.machine.name, number) for number in range(8)].index(uuid)
        node_changes.set_gpu(lab.machine, index, ecc_uncorrected=1, recovery="reset")
        node_changes.apply(lab.machine, "xid", [str(index), "48"])
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
