# SPDX-License-Identifier: Apache-2.0
"""GPUs that heal, on a real API server and kubelet: from an XID to healthy; who is in the way.

One agent runs for all tests, with NVML in a process of its own; each test uses GPUs of its own.
The seconds until something holds are printed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.heal.node import REQUEST
from nvct.agent.heal.task import PROTECTED
from nvct_sim import node_changes, tree
from tests.engines.box import PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes import test_health
from tests.kubernetes.api import PODS
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import TIMEOUT_S, asks, log
from tests.kubernetes.test_condition import RIGHTS, kubeconfig_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
GPUS = 8
RELEASED_S = 150.0
"""Until processes had a minute to let go, after an eviction of half a minute."""
SCRIPT = "echo $NVIDIA_VISIBLE_DEVICES; sleep 600"
NEEDS = (
    *RIGHTS, ("heal-nodes", "patch", "nodes"), ("heal-pods", "get", "pods"),
    ("heal-evictions", "create", "pods/eviction"),
)  # fmt: skip
"""What docs/heal.md names, and the rights of the task condition."""


class Lab(test_health.Lab):
    """A cluster whose node has an agent that heals."""

    tasks = "device-plugin,condition,heal"

    def healing(self) -> dict[int, dict[str, Any]]:
        """Return what the agent says of the GPUs that are not well, by their index."""
        done = self.cluster.box.call(f"{PROGRAMS}/nvct", "agent", "--status")
        tasks = json.loads(done.stdout)["tasks"] if done.stdout else []
        details = [task["detail"][0] for task in tasks if task["name"] == "heal"]
        uuids = [tree.gpu_uuid(self.machine.name, index) for index in range(GPUS)]
        return {uuids.index(gpu["uuid"]): gpu for each in details for gpu in each["gpus"]}

    def step(self, gpu: int) -> str:
        return str(self.healing().get(gpu, {}).get("step", ""))

    def run(self, name: str, **labels: str) -> int:
        """Start a pod with one GPU, and return the GPU's index."""
        manifest = asks(1, SCRIPT, runtime_class="").manifest(name)
        manifest["metadata"]["labels"] = {**manifest["metadata"].get("labels", {}), **labels}
        manifest["spec"]["terminationGracePeriodSeconds"] = 1
        self.cluster.api.create(PODS, manifest)
        self.until(lambda: log(self.cluster, name).startswith("GPU-"), f"{name} has a GPU")
        uuid = log(self.cluster, name).strip()
        return [tree.gpu_uuid(self.machine.name, index) for index in range(GPUS)].index(uuid)

    def fail(self, gpu: int) -> None:
        """Let a GPU have a double-bit error."""
        node_changes.set_gpu(self.machine, gpu, ecc_uncorrected=1, recovery="reset")
        node_changes.apply(self.machine, "xid", [str(gpu), "48"])

    def request(self) -> str:
        node = self.cluster.api.find(f"/api/v1/nodes/{NODE}")
        assert node is not None
        return str(node["metadata"]["labels"].get(REQUEST, ""))


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Iterator[Lab]:
    path = kubeconfig_of(cluster, "heal")
    for name, verb, resource in NEEDS:
        cluster.kubectl("create", "clusterrole", name, f"--verb={verb}", f"--resource={resource}")
        bound = (f"--clusterrole={name}", "--serviceaccount=default:heal")
        cluster.kubectl("create", "clusterrolebinding", name, *bound)
    made = Lab(cluster, path)
    made.start(GPUS, NVCT_REMEDIATION="reset", NVCT_REMEDIATION_EVICT_S="20",
               NVCT_REMEDIATION_NODES="0")  # fmt: skip
    try:
        yield made
    finally:
        made.end()


def test_from_an_xid_to_healthy_with_only_the_pod_of_that_gpu_evicted(lab: Lab) -> None:
    gpu = lab.run("victim")
    lab.run("bystander")
    before = lab.cluster.api.find(f"{PODS}/bystander")
    gpus, request = lab.listed(), lab.request()
    assert gpus is not None
    lab.fail(gpu)
    lab.until(lambda: lab.listed() == gpus - 1, "the kubelet's list falls")
    lab.until(lambda: lab.cluster.api.find(f"{PODS}/victim") is None, "its pod is evicted")
    lab.until(lambda: lab.listed() == gpus, "the kubelet's list rises")
    lab.until(lambda: lab.step(gpu) == "", "it is healthy")
    after = lab.cluster.api.find(f"{PODS}/bystander")
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["phase"] == "Running"
    assert "deletionTimestamp" not in after["metadata"]
    lab.until(lambda: "GPUHealed" in lab.events(NODE), "Events of the Node")
    wanted = {"GPUQuarantined", "GPUEvicting", "GPUReleasing", "GPUResetting", "GPUChecking"}
    assert wanted <= lab.events(NODE).keys()
    uuid = tree.gpu_uuid(lab.machine.name, gpu)
    assert f'nvct_heal_steps_total{{UUID="{uuid}",step="resetting"}} 1' in lab.metrics()
    assert lab.request() == request
    lab.cluster.api.delete(f"{PODS}/bystander")


def test_what_is_in_the_way_is_named_and_what_no_reset_helps_is_asked_for(
    lab: Lab, tmp_path: Path
) -> None:
    protected = lab.run("protected", **{PROTECTED: "never"})
    held, lost = [index for index in range(GPUS) if index != protected][:2]
    holds = f"import os, time; os.open('/dev/nvidia{held}', os.O_PATH); time.sleep(600)"
    python = f"{PROGRAMS}/python"
    holder = lab.cluster.box.start([python, "-I", "-c", holds], "holder.log")
    try:
        lab.fail(protected)
        lab.fail(held)
        lab.play(f'[[step]]\nat = 0\ndo = "lose {lost}"\n', tmp_path)
        lab.until(lambda: lab.request() == "reboot", "the lost GPU")
        assert lab.step(lost) == "requested"
        lab.until(
            lambda: lab.step(protected) == "failed", "the pod that may not be evicted", RELEASED_S
        )
        assert f"label {PROTECTED} forbids" in lab.healing()[protected]["reason"]
        lab.until(
            lambda: lab.step(held) == "failed", "the process that does not let go", RELEASED_S
        )
        assert "holds GPU" in lab.healing()[held]["reason"]
        found = lab.cluster.api.find(f"{PODS}/protected")
        assert found is not None
        assert found["status"]["phase"] == "Running"
        assert lab.states(protected, held) == {
            protected: "unhealthy reset", held: "unhealthy reset"
        }  # fmt: skip
        node_changes.reset_gpu(lab.machine, protected)  # somebody does it
        lab.until(lambda: lab.step(protected) == "", "it is healthy again")
    finally:
        holder.kill()
        holder.wait(TIMEOUT_S)
        lab.cluster.api.delete(f"{PODS}/protected")


def test_a_hang_and_a_reset_that_fails_end_in_a_request_and_recover(lab: Lab) -> None:
    well = [index for index in range(GPUS) if index not in lab.healing()]
    hung, used = well[:2]
    # nvidia-smi refuses, though no process of this machine has the GPU open.
    node_changes.set_process(lab.machine, used, 4194303, {"memory": "1"})
    lab.fail(used)
    lab.until(lambda: lab.step(used) == "requested", "the reset that fails", RELEASED_S)
    assert "no reset: " in lab.healing()[used]["reason"]
    node_changes.end_process(lab.machine, used, 4194303)
    node_changes.reset_gpu(lab.machine, used)  # somebody does it
    lab.until(lambda: lab.step(used) == "", "it is healthy again")

    node_changes.set_gpu(lab.machine, hung, hang=600)
    try:
        lab.until(lambda: lab.step(hung) == "requested", "a GPU that hangs", RELEASED_S)
        assert lab.healing()[hung]["action"] == "reboot"
    finally:
        node_changes.set_gpu(lab.machine, hung, hang=0)
    lab.until(lambda: lab.step(hung) == "", "it answers again")
