# SPDX-License-Identifier: Apache-2.0
"""MIG by a label of the Node, on a real API server and kubelet; the agent runs on the node.

As in the chart, the agent has no capability: NVML is in a process of its own.
"""

import contextlib
import re
import time
from collections.abc import Iterator

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.mig_manager.node_labels import CONFIG, REASON, STATE
from nvct_sim import node_changes, tree
from nvct_sim.mig import mig_uuid
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import FOLDER, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import GPUS, TIMEOUT_S, asks, simulated, state
from tests.kubernetes.device_plugin import log as log_of
from tests.kubernetes.listed import kubelet
from tests.kubernetes.pods import run_all

pytestmark = [pytest.mark.slow, ON_ONE]
LOG, PID = "agent.log", "/run/agent.pid"
KEEPS = ("sh", "-c", f'echo $$ > {PID}; exec "$@"', "sh")
"""Starts a program, and keeps its process id."""
WORKER = "/run/nvct-nvml/nvml.sock"
NO_RIGHTS = (
    "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"
)  # fmt: skip
CONFIGS = f"{FOLDER}/mig-configs.yaml"
TASKS = ("device-plugin", "exporter", "labels", "mig-manager")
METRICS = "127.0.0.1:9401"
PLUGIN, EXPORTER = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.dcgm-exporter"
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
MIG_UUID = re.compile(r"UUID: (MIG-[0-9a-f-]+)")
STAYS = "nvidia-smi -L; sleep 600"
SOON_S = 5.0
"""From the label to the kubelet's list. The change itself waits 1 s for the plugin."""
LOOK_S, WATCH_S = 3.0, 5.0
"""Between two looks of the manager, which has 30 s; how long a watch lasts: it has 300 s."""
AWAY_S = WATCH_S + 15.0
"""More than a watch, and the 10 s that a request may take."""
AGENT = f"""
from nvct.agent.kubernetes.cluster import Cluster
from nvct.agent.mig_manager import task
from nvct.agent.__main__ import main
task.PERIOD_S = {LOOK_S}
Cluster.changes.__defaults__ = ({WATCH_S},)
main()
"""
CHANGE, JOURNAL = "/run/nvct-agent/mig-change.json", "/run/nvct-agent/mig-journal.json"
MOMENTS = {
    "before": f"until [ -e {CHANGE} ]; do :; done",
    "in the middle": f"until [ -e {JOURNAL} ]; do :; done",
    "after": f"until [ -e {JOURNAL} ]; do :; done; while [ -e {JOURNAL} ]; do :; done",
}
"""Waits of the shell for a moment of a change: devices paused, being changed, changed."""
TEXT = """
version: v1
mig-configs:
  small:
  - {devices: all, mig-enabled: false}
  - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 3}}
  mixed:
  - {devices: all, mig-enabled: false}
  - {devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}
  large:
  - {devices: all, mig-enabled: false}
  - {devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}
"""
RIGHTS = (("get,list,watch,patch", "nodes"), ("get", "pods"), ("create", "events"))


@pytest.fixture(scope="module")
def account(node: Cluster) -> str:
    """A service account with the rights that docs/mig.md names; return its kubeconfig."""
    node.box.write(CONFIGS, TEXT)
    return kubeconfig_of(node, "mig", *RIGHTS)


@contextlib.contextmanager
def agent(cluster: Cluster, account: str, wanted: str = "all-disabled") -> Iterator[None]:
    """Run the agent until the GPUs are as wanted; at the end they are without MIG again."""
    label(cluster, wanted)
    with running(cluster, account):
        until_shown(cluster, "success")
        try:
            yield
        finally:
            label(cluster, "all-disabled")
            listed(cluster, GPU, GPUS)
            until_shown(cluster, "success")


@contextlib.contextmanager
def running(cluster: Cluster, account: str) -> Iterator[None]:
    settings = {
        "KUBECONFIG": account, "NODE_NAME": NODE, "NVIDIA_DRIVER_ROOT": DRIVER_ROOT,
        "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT, "MIG_STRATEGY": "mixed", "SLEEP_INTERVAL": "1s",
        "NVIDIA_CDI_HOOK_PATH": f"{PROGRAMS}/nvidia-cdi-hook", "NVCT_MIG_CONFIG_FILE": CONFIGS,
        "DCGM_EXPORTER_LISTEN": METRICS, "DCGM_EXPORTER_INTERVAL": "1000",
    }  # fmt: skip
    words = ["env", *(f"{key}={value}" for key, value in settings.items())]
    nvct, python = f"{PROGRAMS}/nvct", f"{PROGRAMS}/python"
    worker = [*words, nvct, "agent", "worker", f"--socket={WORKER}"]
    words = [*KEEPS, *NO_RIGHTS, *words, f"NVCT_AGENT_WORKER={WORKER}"]
    with (
        cluster.running("worker.log", *worker),
        cluster.running(LOG, *words, python, "-I", "-c", AGENT, *TASKS),
    ):
        yield


def log(cluster: Cluster) -> str:
    return cluster.log(LOG)


def label(cluster: Cluster, name: str, *more: str) -> None:
    cluster.label(f"{CONFIG}={name}", *more)


def shown(cluster: Cluster) -> tuple[str, str]:
    """Return the state and the reason that the Node shows."""
    metadata = cluster.api.get(cluster.path)["metadata"]
    return metadata["labels"].get(STATE, ""), metadata.get("annotations", {}).get(REASON, "")


def metrics(cluster: Cluster) -> int:
    """Return how many MIG devices the exporter has."""
    done = cluster.box.call("curl", "-s", f"http://{METRICS}/metrics")
    lines = [line for line in done.stdout.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED{")]
    return sum("GPU_I_PROFILE=" in line for line in lines)


def until_shown(cluster: Cluster, expected: str, reason: str = "") -> None:
    def holds() -> bool:
        now, why = shown(cluster)
        return now == expected and reason in why

    assert wait(holds, TIMEOUT_S), (shown(cluster), log(cluster))


def listed(cluster: Cluster, name: str, count: int, limit_s: float = TIMEOUT_S) -> None:
    assert wait(lambda: kubelet(cluster, name) == count, limit_s), log(cluster)


def deleted(cluster: Cluster, *pods: str) -> None:
    for pod in pods:
        cluster.api.delete(f"{PODS}/{pod}")
    gone = wait(lambda: not any(cluster.api.find(f"{PODS}/{pod}") for pod in pods), TIMEOUT_S)
    assert gone


def test_a_label_makes_devices_for_pods_labels_and_metrics(node: Cluster, account: str) -> None:
    with agent(node, account):
        listed(node, GPU, GPUS)
        began = time.monotonic()
        label(node, "mixed", f"{PLUGIN}=true", f"{EXPORTER}=false")
        listed(node, SMALL, 2, SOON_S)
        listed(node, LARGE, 1, SOON_S)
        print(f"the kubelet's list is right {time.monotonic() - began:.1f} s after the label")
        listed(node, GPU, GPUS - 1, SOON_S)
        until_shown(node, "success")
        assert (node.labels[PLUGIN], node.labels[EXPORTER]) == ("true", "false")
        assert wait(lambda: node.labels.get(f"{SMALL}.count") == "2", TIMEOUT_S), log(node)
        assert wait(lambda: metrics(node) == 3, TIMEOUT_S), log(node)
        asked = {"small": asks(2, name=SMALL), "large": asks(1, name=LARGE)}
        results = run_all(node.api, asked)
        seen = [uuid for result in results.values() for uuid in MIG_UUID.findall(result.log)]
        assert len(set(seen)) == len(seen) == 3, results
        assert "MigConfigApplied" in node.kubectl("describe", "node", NODE)


def test_what_pods_have_stays_and_a_busy_gpu_is_named(node: Cluster, account: str) -> None:
    with agent(node, account):
        label(node, "no-such-name")
        until_shown(node, "failed", "there is no MIG configuration 'no-such-name'")
        listed(node, GPU, GPUS)
        label(node, "small")
        listed(node, SMALL, 3)
        node.api.create(PODS, asks(1, STAYS, SMALL).manifest("train"))
        try:
            assert wait(lambda: "MIG-" in log_of(node, "train"), TIMEOUT_S), state(node, "train")
            label(node, "mixed")
            listed(node, LARGE, 1)
            listed(node, SMALL, 2)
            until_shown(node, "success")
            (uuid,) = MIG_UUID.findall(log_of(node, "train"))
            label(node, "large")
            until_shown(node, "failed", f"pod default/train has {uuid}")
            listed(node, LARGE, 1)
            found = node.api.get(f"{PODS}/train")
            assert found["status"]["phase"] == "Running"
        finally:
            deleted(node, "train")
        listed(node, "nvidia.com/mig-7g.80gb", 1)
        until_shown(node, "success")


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_agent_that_is_killed_leaves_nothing_paused(
    node: Cluster, account: str, moment: str
) -> None:
    label(node, "all-disabled", f"{PLUGIN}=true")
    with running(node, account):
        listed(node, GPU, GPUS)
        until_shown(node, "success")
        kill = f"{MOMENTS[moment]}; kill -KILL $(cat {PID})"
        killer = node.box.start(["timeout", f"{TIMEOUT_S:g}", "sh", "-c", kill], "killer.log")
        label(node, "mixed")
        assert killer.wait(TIMEOUT_S) == 0, log(node)
        if moment != "after":  # else it may have written the state
            assert shown(node)[0] == "pending", log(node)
            assert node.labels[PLUGIN] == "paused-for-mig-change"
    with agent(node, account, wanted="mixed"):
        listed(node, LARGE, 1)
        assert node.labels[PLUGIN] == "true"


def test_a_time_without_an_api_server_ends_no_change_and_leaves_nothing_paused(
    node: Cluster, account: str
) -> None:
    with agent(node, account):
        label(node, "mixed", f"{PLUGIN}=true")
        until_shown(node, "success")
        listed(node, LARGE, 1)
        label(node, "small")
        until_shown(node, "pending")
        node.box.call("pkill", "-STOP", "-x", "kube-apiserver")
        began = time.monotonic()
        try:
            listed(node, SMALL, 3)  # the kubelet's own list
            listed(node, LARGE, 0)
            time.sleep(AWAY_S - (time.monotonic() - began))
        finally:
            node.box.call("pkill", "-CONT", "-x", "kube-apiserver")
        began = time.monotonic()
        until_shown(node, "success")
        print(f"the state is right {time.monotonic() - began:.1f} s after the API server is back")
        assert node.labels[PLUGIN] == "true"
        label(node, "all-disabled")  # the watch goes on, too
        listed(node, GPU, GPUS)


def test_a_device_that_fails_is_made_again_when_its_pod_has_ended(
    node: Cluster, account: str
) -> None:
    with agent(node, account):
        label(node, "small")
        listed(node, SMALL, 3)
        until_shown(node, "success")
        node.api.create(PODS, asks(1, STAYS, SMALL).manifest("train"))
        try:
            assert wait(lambda: "MIG-" in log_of(node, "train"), TIMEOUT_S), state(node, "train")
            (uuid,) = MIG_UUID.findall(log_of(node, "train"))
            gpu = tree.gpu_uuid(simulated(node).name, 0)
            found = simulated(node).state().find("gi", gpu=0)
            ids = [int(entry.fields["id"]) for entry in found]
            (failed,) = [gi for gi in ids if mig_uuid(gpu, gi, 0) == uuid]
            node_changes.apply(simulated(node), "xid", ["0", "48", f"gi={failed}", "ci=0"])
            listed(node, SMALL, 2)
        finally:
            deleted(node, "train")
        listed(node, SMALL, 3)
        assert "it was destroyed and made again" in log(node)
        assert shown(node) == ("success", "")
        results = run_all(node.api, {"again": asks(3, name=SMALL)})
        assert len(set(MIG_UUID.findall(results["again"].log))) == 3


def test_a_pod_in_the_middle_gets_a_device_that_is_there_or_none(
    node: Cluster, account: str
) -> None:
    names = [f"early-{number}" for number in range(3)]
    with agent(node, account):
        label(node, "small")
        listed(node, SMALL, 3)
        label(node, "large")
        for name in names:
            node.api.create(PODS, asks(1, name=SMALL).manifest(name))
        try:
            listed(node, SMALL, 0)
            until_shown(node, "success")
            listed(node, "nvidia.com/mig-7g.80gb", 1)
            for name in names:
                found = node.api.get(f"{PODS}/{name}")
                text = log_of(node, name)
                has_run = found["status"]["phase"] == "Succeeded"
                assert len(MIG_UUID.findall(text)) == has_run, (text, state(node, name))
                assert "7g.80gb" not in text
        finally:
            deleted(node, *names)
