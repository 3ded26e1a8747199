# SPDX-License-Identifier: Apache-2.0
"""GPUs that heal, on a real API server and kubelet: from an XID to healthy; who is in the way.

Each test has an agent of its own, with NVML in another process, and GPUs that are well.
The seconds until something holds are printed.
"""

import contextlib
import json
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from nvct.agent.heal.brakes import RESETS
from nvct.agent.heal.machine import HEALING
from nvct.agent.heal.node import REQUEST
from nvct.agent.heal.task import FILE
from nvct.agent.kubernetes.node_pods import PROTECTED
from nvct.paths import AGENT_DIR
from nvct_sim import node_changes, state
from tests.engines.box import PROGRAMS
from tests.kubernetes import beside
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import PODS
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S
from tests.kubernetes.healing import test_health
from tests.kubernetes.tasks.test_condition import RIGHTS

pytestmark = [pytest.mark.slow, ON_ONE]
RELEASED_S = 150.0
"""Until processes had a minute to let go, after an eviction of half a minute."""
HOLDS = """
import os, time
open('/proc/self/comm', 'w').write('{command}')
os.open('/dev/nvidia{gpu}', os.O_PATH)
time.sleep(600)
"""
MISSED = {"checking": ("probation", ""), "probation": ("",)}
"""What follows steps that may be over before they are seen."""
NEEDS = (*RIGHTS, ("patch", "nodes"), ("get", "pods"), ("create", "pods/eviction"))
"""What docs/heal.md names, and the rights of the task condition."""


class Lab(test_health.Lab):
    """A cluster whose node has an agent that heals."""

    tasks = "device-plugin,condition,heal"

    def healing(self) -> dict[int, dict[str, Any]]:
        """Return what the agent says of the GPUs that are not well, by their index."""
        tasks = json.loads(beside.ask(self.cluster) or "{}").get("tasks", [])
        details = [
            task["detail"][0] for task in tasks if task["name"] == "heal" and task["detail"]
        ]
        return {self.uuids.index(gpu["uuid"]): gpu for each in details for gpu in each["gpus"]}

    def step(self, gpu: int) -> str:
        return str(self.healing().get(gpu, {}).get("step", ""))

    def saved(self, gpu: int) -> str:
        """Return the last step of a GPU that the agent has written to its file, "" for none."""
        try:
            gpus = json.loads(self.file(FILE).read_text(encoding="utf-8"))["gpus"]
        except FileNotFoundError:  # it has written nothing yet
            return ""
        return next(
            (str(each["record"]["step"]) for each in gpus if each["gpu"] == self.uuids[gpu]), ""
        )

    def resets(self) -> dict[str, int]:
        """Return how often GPUs were reset, by UUID."""
        known = json.loads(self.file(RESETS).read_text(encoding="utf-8"))["resets"]
        return {uuid: len(ats) for uuid, ats in known.items()}

    def file(self, name: str) -> Path:
        return self.cluster.box.root / AGENT_DIR.lstrip("/") / name

    def well(self) -> list[int]:
        """Return the GPUs that nothing is done about."""
        return [index for index in range(GPUS) if index not in self.healing()]

    def heals(self, *gpus: int) -> None:
        """Start the agent; wait until the kubelet has one of these numbers of GPUs, if any."""
        self.start(
            *gpus, NVCT_REMEDIATION="reset", NVCT_REMEDIATION_EVICT_S="20",
            NVCT_REMEDIATION_NODES="0", NVCT_REMEDIATION_GROUP="true",
        )  # fmt: skip

    def uid(self, name: str) -> str:
        """Return the uid of a pod that runs, "" of one that is gone or about to go."""
        pod = self.cluster.api.find(f"{PODS}/{name}")
        if pod is None or pod["status"]["phase"] != "Running":
            return ""
        return "" if "deletionTimestamp" in pod["metadata"] else str(pod["metadata"]["uid"])

    def fail(self, gpu: int, **fields: str | int) -> None:
        """Let a GPU have a double-bit error after which the driver asks for a reset."""
        super().fail(gpu, **{"recovery": "reset", **fields})

    def holds(self, gpu: int, command: str) -> subprocess.Popen[bytes]:
        """Start a process of the node that has a GPU open."""
        script = HOLDS.format(command=command, gpu=gpu)
        return self.cluster.box.start([f"{PROGRAMS}/python", "-I", "-c", script], "holder.log")

    @contextlib.contextmanager
    def connected(self, groups: Collection[Collection[int]]) -> Iterator[None]:
        """Make GPUs Voltas for a while, with NVLinks between those of a group."""
        peers = {gpu: [peer for peer in group if peer != gpu] for group in groups for gpu in group}
        with state.change(self.machine.state_file) as now:
            before = {gpu: dict(now.gpu(gpu).fields) for gpu in peers}
            for gpu, links in peers.items():
                fields = {"cc": "7.0", "nvlink": "2", "links": ",".join(map(str, links))}
                now.gpu(gpu).fields.update(fields)
        try:
            yield
        finally:
            with state.change(self.machine.state_file) as now:
                for gpu, fields in before.items():
                    now.gpu(gpu).fields.update({"cc": fields["cc"], "links": ""})

    def request(self) -> str:
        return self.cluster.labels.get(REQUEST, "")


@pytest.fixture(scope="module")
def made(cluster: Cluster) -> Lab:
    return Lab(cluster, kubeconfig_of(cluster, "heal", *NEEDS))


@pytest.fixture
def lab(made: Lab) -> Iterator[Lab]:
    with made.renewed():
        made.heals(GPUS)
        yield made


def test_from_an_xid_to_healthy_with_only_the_pod_of_that_gpu_evicted(lab: Lab) -> None:
    gpu = lab.run("victim")
    lab.run("bystander")
    before = lab.uid("bystander")
    gpus, request = lab.listed(), lab.request()
    assert gpus is not None
    daemon = lab.holds(gpu, "nvidia-persiste")
    lab.fail(gpu)
    lab.until(lambda: lab.listed() == gpus - 1, "the kubelet's list falls")
    lab.until(lambda: lab.cluster.api.find(f"{PODS}/victim") is None, "its pod is evicted")
    lab.until(lambda: lab.listed() == gpus, "the kubelet's list rises")
    lab.until(lambda: lab.step(gpu) == "", "it is healthy")
    assert daemon.poll() is None
    daemon.kill()
    assert before == lab.uid("bystander") != ""
    lab.until(lambda: "GPUHealed" in lab.events(NODE), "Events of the Node")
    wanted = {"GPUQuarantined", "GPUEvicting", "GPUReleasing", "GPUResetting", "GPUChecking"}
    assert wanted <= lab.events(NODE).keys()
    steps = f'nvct_heal_steps_total{{UUID="{lab.uuids[gpu]}",step="resetting"}} 1'
    assert steps in lab.metrics()
    assert lab.request() == request
    lab.cluster.api.delete(f"{PODS}/bystander")


def test_killed_at_each_step_the_next_agent_ends_it_and_a_gpu_that_flaps_ends_in_a_request(
    lab: Lab,
) -> None:
    gpu = lab.run("killed", grace_s=8)
    lab.run("neighbor")
    before, gpus = lab.uid("neighbor"), lab.listed()
    assert gpus is not None
    lab.fail(gpu)
    for step in ("quarantined", *HEALING, "probation"):
        known = (step, *MISSED.get(step, ()))
        lab.until(lambda: lab.saved(gpu) in known, step, RELEASED_S)  # noqa: B023
        lab.kill("-KILL")
        lab.process.wait(TIMEOUT_S)
        lab.heals()
    lab.until(
        lambda: lab.step(gpu) == "" and lab.listed() == gpus, "it is healthy", RELEASED_S
    )  # fmt: skip
    assert lab.cluster.api.find(f"{PODS}/killed") is None
    assert before == lab.uid("neighbor") != ""

    for _ in range(2):  # the kill at `resetting` came before nvidia-smi or after
        lab.fail(gpu)
        lab.until(lambda: lab.step(gpu) != "", "it fails again")
        lab.until(lambda: lab.step(gpu) in ("", "requested"), "it is reset or not", RELEASED_S)
    assert lab.healing()[gpu]["action"] == "reboot"
    assert "times within an hour" in lab.healing()[gpu]["reason"]
    assert before == lab.uid("neighbor") != ""
    lab.cluster.api.delete(f"{PODS}/neighbor")


def test_what_is_in_the_way_is_named_and_what_no_reset_helps_is_asked_for(
    lab: Lab, tmp_path: Path
) -> None:
    protected = lab.run("protected", 0, **{PROTECTED: "never"})
    held, lost = [index for index in lab.well() if index != protected][:2]
    holder = lab.holds(held, "cuda")
    try:
        lab.fail(protected)
        lab.fail(held)
        lab.play(f'[[step]]\nat = 0\ndo = "lose {lost}"\n', tmp_path)
        lab.until(lambda: lab.step(lost) == "requested", "the lost GPU")
        lab.until(lambda: lab.request() == "reboot", "the label")
        lab.until(
            lambda: f"label {PROTECTED} forbids" in lab.healing()[protected]["reason"],
            "the pod that may not be evicted", RELEASED_S,
        )  # fmt: skip
        assert lab.step(protected) == "quarantined"
        lab.until(
            lambda: lab.step(held) == "failed", "the process that does not let go", RELEASED_S
        )
        assert "holds GPU" in lab.healing()[held]["reason"]
        assert lab.uid("protected")
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
    hung, used = lab.well()[:2]
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


def test_gpus_that_nvlinks_connect_are_emptied_and_reset_together_and_others_are_left_alone(
    lab: Lab,
) -> None:
    well, gpus = lab.well(), lab.listed()
    assert gpus == len(well) == GPUS
    names = {lab.run(f"pod-{number}"): f"pod-{number}" for number in range(gpus)}
    group, others = well[:2], well[2:]
    kept = {names[index]: lab.uid(names[index]) for index in others}
    with lab.connected([group, others]):
        lab.fail(group[0])
        lab.until(lambda: lab.listed() == gpus - 2, "both are withheld", RELEASED_S)
        lab.until(lambda: not any(lab.uid(names[index]) for index in group), "pods are evicted")
        lab.until(lambda: lab.listed() == gpus, "both come back", RELEASED_S)
    assert {name: lab.uid(name) for name in kept} == kept
    assert "" not in kept.values()
    assert lab.resets() == {lab.uuids[index]: 1 for index in group}
    for name in kept:
        lab.cluster.api.delete(f"{PODS}/{name}")
