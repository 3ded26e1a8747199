# SPDX-License-Identifier: Apache-2.0
"""Feature labels on a real API server: Node and rights; the programs run on the node."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvct_sim import node_changes, tree
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import simulated, smi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
TIMEOUT_S = 60.0
SOON_S = 10.0
RIGHT_S = 5.0
"""Within which labels are right after a change."""
GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
PRODUCT = "NVIDIA-H100-80GB-HBM3"
NODE_PATH = f"/api/v1/nodes/{NODE}"
OWN = f"{FOLDER}/own-labels.yaml"
CONFIG = "nvidia.com/device-plugin.config"
CONFIGS = f"{FOLDER}/labels-configs"
SHARING = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n"
DRIVER = "nvidia.com/cuda.driver-version.full"


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> str:
    """A service account that may get and patch Nodes; return its kubeconfig."""
    return kubeconfig_of(cluster, "labels", may="get,patch")


def words_of(kubeconfig: str, *flags: str) -> list[str]:
    return [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "gpu-feature-discovery",
        f"--driver-root-ctr-path={DRIVER_ROOT}", f"--kubeconfig={kubeconfig}",
        f"--node-name={NODE}", *flags,
    ]  # fmt: skip


@contextlib.contextmanager
def running(cluster: Cluster, kubeconfig: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    process = cluster.box.start(words_of(kubeconfig, *flags), "labels.log")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def labels(cluster: Cluster) -> dict[str, str]:
    node = cluster.api.find(NODE_PATH)
    assert node is not None
    found: dict[str, str] = node["metadata"]["labels"]
    return found


def log_of(cluster: Cluster) -> Path:
    return Path(cluster.box.work) / "labels.log"


def log(cluster: Cluster) -> str:
    return log_of(cluster).read_text(errors="replace")


def test_a_node_has_the_labels_and_those_of_others_stay(cluster: Cluster, account: str) -> None:
    mine = ("example.com/mine=1", f"{GPU}.count=of-another")
    cluster.kubectl("label", "--overwrite", "node", NODE, *mine)
    cluster.box.write(
        OWN, 'example.com/pool: training\nexample.com/gpu: "@nvidia.com/gpu.product"\n'
    )
    words = ("--label-node", "--sleep-interval=1s", f"--labels-file={OWN}")
    with running(cluster, account, *words) as process:
        assert wait(lambda: labels(cluster).get(f"{GPU}.count") == "8", TIMEOUT_S), log(cluster)
        found = labels(cluster)
        assert found[f"{GPU}.product"] == found["example.com/gpu"] == PRODUCT
        assert found[f"{GPU}.ecc"] == "true"
        assert found["example.com/pool"] == "training"
        assert found["example.com/mine"] == "1"
        node = cluster.api.find(NODE_PATH)
        assert node is not None
        assert "nvct-labels" in [f["manager"] for f in node["metadata"]["managedFields"]]

        cluster.kubectl("label", "node", NODE, "--overwrite", f"{GPU}.count=9")
        assert wait(lambda: labels(cluster)[f"{GPU}.count"] == "8", SOON_S), log(cluster)
        cluster.box.write(OWN, "example.com/pool: inference\n")
        process.send_signal(1)
        assert wait(lambda: "example.com/gpu" not in labels(cluster), SOON_S), log(cluster)
        assert labels(cluster)["example.com/pool"] == "inference"
    assert labels(cluster)[f"{GPU}.count"] == "8"  # they stay at the end


def test_a_mig_change_is_followed_within_seconds(cluster: Cluster, account: str) -> None:
    with running(cluster, account, "--label-node", "--mig-strategy=mixed"):
        assert wait(lambda: labels(cluster).get("nvidia.com/mig.strategy") == "mixed", TIMEOUT_S)
        smi(cluster, "-i", "0", "-mig", "1")
        smi(cluster, "mig", "-i", "0", "-cgi", "1g.10gb,1g.10gb", "-C")
        began = time.monotonic()
        try:
            assert wait(lambda: labels(cluster).get(f"{SMALL}.count") == "2", SOON_S), log(cluster)
            print(f"labels of MIG devices after {time.monotonic() - began:.1f} s")
            assert labels(cluster)[f"{SMALL}.memory"] == "9856"
        finally:
            smi(cluster, "mig", "-i", "0", "-dci")
            smi(cluster, "mig", "-i", "0", "-dgi")
            smi(cluster, "-i", "0", "-mig", "0")
        assert wait(lambda: f"{SMALL}.count" not in labels(cluster), SOON_S), log(cluster)
        assert labels(cluster)[f"{GPU}.product"] == PRODUCT


def test_labels_follow_mig_driver_and_config_file_and_never_vanish(cluster: Cluster) -> None:
    """A watch sees each version of the Node while the agent follows the three changes."""
    machine = simulated(cluster)
    for name, text in {"whole": "version: v1", "shared": SHARING, "bad": "sharing: 1"}.items():
        cluster.box.call("mkdir", "-p", CONFIGS)
        cluster.box.write(f"{CONFIGS}/{name}", text)
    with agent(cluster), watched(cluster):
        smi(cluster, "-i", "0", "-mig", "1")
        smi(cluster, "mig", "-i", "0", "-cgi", "1g.10gb,1g.10gb", "-C")
        within_5_s(lambda: labels(cluster).get(f"{SMALL}.count") == "2", "MIG devices", cluster)
        smi(cluster, "mig", "-i", "0", "-dci")
        smi(cluster, "mig", "-i", "0", "-dgi")
        smi(cluster, "-i", "0", "-mig", "0")
        within_5_s(lambda: f"{SMALL}.count" not in labels(cluster), "MIG mode", cluster)
        try:
            node_changes.reload_module(node_changes.upgrade(machine, "595.71.05"))
            within_5_s(lambda: labels(cluster)[DRIVER] == "595.71.05", "driver", cluster)
            cluster.kubectl("label", "--overwrite", "node", NODE, f"{CONFIG}=shared")
            within_5_s(lambda: labels(cluster)[f"{GPU}.replicas"] == "4", "config file", cluster)
            cluster.kubectl("label", "--overwrite", "node", NODE, f"{CONFIG}=bad")
            assert wait(lambda: "; shared stays in force" in log(cluster), SOON_S), log(cluster)
            assert labels(cluster)[f"{GPU}.replicas"] == "4"
            cluster.kubectl("label", "node", NODE, f"{CONFIG}-")
            within_5_s(lambda: labels(cluster)[f"{GPU}.replicas"] == "1", "label", cluster)
            assert wait(lambda: f'"{GPU}.replicas":"1"' in seen(cluster)[-1], SOON_S)
        finally:
            (now,) = tree.list_nodes(machine.tree.parent)
            node_changes.reload_module(node_changes.upgrade(now, machine.installed))
    versions = [json.loads(text) for text in seen(cluster)]
    assert {version[DRIVER] for version in versions} >= {machine.installed, "595.71.05"}
    for version in versions:
        assert version.keys() >= versions[0].keys() - {CONFIG}, version


@contextlib.contextmanager
def agent(cluster: Cluster) -> Iterator[None]:
    """Run the agent with labels and config-manager on the node, until its labels are there."""
    account = kubeconfig_of(cluster, "agent", may="get,list,watch,patch")
    settings = {
        "KUBECONFIG": account, "NODE_NAME": NODE, "DRIVER_ROOT_CTR_PATH": DRIVER_ROOT,
        "MIG_STRATEGY": "mixed", "CONFIG_FILE": f"{FOLDER}/agent-config.yaml",
        "CONFIG_FILE_SRCDIR": CONFIGS, "DEFAULT_CONFIG": "whole",
    }  # fmt: skip
    words = [f"{PROGRAMS}/python", "-I", "-m", "nvct.agent", "config-manager", "labels"]
    env = [f"{key}={value}" for key, value in settings.items()]
    log_of(cluster).unlink(missing_ok=True)
    process = cluster.box.start(["env", *env, *words], "labels.log")
    try:
        has_all = {f"{GPU}.count": "8", "nvidia.com/mig.strategy": "mixed", f"{GPU}.replicas": "1"}
        # An earlier test may have left labels on the Node.
        assert wait(lambda: "labels were written" in log(cluster), TIMEOUT_S), log(cluster)
        assert wait(lambda: has_all.items() <= labels(cluster).items(), TIMEOUT_S), log(cluster)
        yield
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """Watch the labels of the Node; see `seen`."""
    words = ["kubectl", f"--kubeconfig={KUBECONFIG}", "get", "node", NODE, "--watch"]
    watching = cluster.box.start([*words, "-o=jsonpath={.metadata.labels}{'\\n'}"], "watch.log")
    try:
        assert wait(lambda: seen(cluster), TIMEOUT_S)
        yield
    finally:
        watching.terminate()
        watching.wait(TIMEOUT_S)


def within_5_s(holds: Callable[[], bool], what: str, cluster: Cluster) -> None:
    began = time.monotonic()
    assert wait(holds, RIGHT_S), f"{what}: {labels(cluster)}\n{log(cluster)}"
    print(f"labels after a change of the {what}: {time.monotonic() - began:.1f} s")


def seen(cluster: Cluster) -> list[str]:
    """Return the labels of each version of the Node that the watch has seen, as JSON."""
    text = (Path(cluster.box.work) / "watch.log").read_text()
    return [line for line in text.splitlines() if line.endswith("}")]


def test_who_may_not_is_named_with_what_is_to_be_granted(cluster: Cluster) -> None:
    kubeconfig = kubeconfig_of(cluster, "powerless")

    done = cluster.box.call(*words_of(kubeconfig, "--label-node", "--oneshot"))

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "service account powerless of namespace default may not get nodes" in last
    assert "an administrator of the cluster must grant it by a ClusterRole: verb get" in last


def test_a_node_that_is_not_there_is_not_created(cluster: Cluster, account: str) -> None:
    done = cluster.box.call(
        *words_of(account, "--label-node", "--oneshot", "--node-name=elsewhere")
    )

    assert done.returncode == 1
    assert "the cluster has no Node elsewhere" in done.stderr
    assert cluster.api.find("/api/v1/nodes/elsewhere") is None


def test_labels_are_removed_on_request_and_those_of_others_stay(
    cluster: Cluster, account: str
) -> None:
    cluster.kubectl("label", "node", NODE, "--overwrite", "example.com/mine=1")
    done = cluster.box.call(*words_of(account, "--label-node", "--oneshot"))
    assert done.returncode == 0, done
    assert f"{GPU}.count" in labels(cluster)

    done = cluster.box.call(*words_of(account, "--label-node", "--remove-labels"))

    assert done.returncode == 0, done
    assert not [key for key in labels(cluster) if key.startswith("nvidia.com/")]
    assert labels(cluster)["example.com/mine"] == "1"


def test_the_agent_labels_its_node(cluster: Cluster, account: str) -> None:
    env = [f"KUBECONFIG={account}", f"NODE_NAME={NODE}", f"DRIVER_ROOT_CTR_PATH={DRIVER_ROOT}"]
    words = ["env", *env, f"{PROGRAMS}/python", "-I", "-m", "nvct.agent", "labels"]
    process = cluster.box.start(words, "labels.log")
    try:
        assert wait(lambda: labels(cluster).get(f"{GPU}.family") == "hopper", TIMEOUT_S), log(
            cluster
        )
        ready = [f"{PROGRAMS}/nvct", "agent", "--ready"]
        assert wait(lambda: cluster.box.call(*ready).returncode == 0, TIMEOUT_S), log(cluster)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
