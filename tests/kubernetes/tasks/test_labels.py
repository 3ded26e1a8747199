# SPDX-License-Identifier: Apache-2.0
"""Feature labels on a real API server: Node and rights; the programs run on the node."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest

from nvct_sim import node_changes, tree
from tests.engines.box import DRIVER_ROOT, PROGRAMS, BoxedProcess
from tests.kubernetes import beside
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import wait
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import divided, simulated

pytestmark = [pytest.mark.slow, ON_ONE]
TIMEOUT_S = 60.0
SOON_S = 10.0
RIGHT_S = 5.0
"""Within which labels are right after a change."""
GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
PRODUCT = "NVIDIA-H100-80GB-HBM3"
OWN = f"{FOLDER}/own-labels.yaml"
CONFIG = "nvidia.com/device-plugin.config"
CONFIGS = f"{FOLDER}/labels-configs"
SHARING = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n"
DRIVER = "nvidia.com/cuda.driver-version.full"
LOG, WATCH = "labels.log", "watch.log"
TASKS = ("config-manager", "labels")


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> str:
    """A service account that may get and patch Nodes; return its kubeconfig."""
    return kubeconfig_of(cluster, "labels", ("get,patch", "nodes"))


def words_of(kubeconfig: str, *flags: str) -> list[str]:
    return [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "gpu-feature-discovery",
        f"--driver-root-ctr-path={DRIVER_ROOT}", f"--kubeconfig={kubeconfig}",
        f"--node-name={NODE}", *flags,
    ]  # fmt: skip


def running(
    cluster: Cluster, kubeconfig: str, *flags: str
) -> contextlib.AbstractContextManager[BoxedProcess]:
    return cluster.running(LOG, *words_of(kubeconfig, *flags))


def log(cluster: Cluster) -> str:
    return cluster.log(LOG)


def test_a_node_has_the_labels_and_those_of_others_stay(cluster: Cluster, account: str) -> None:
    mine = ("example.com/mine=1", f"{GPU}.count=of-another")
    cluster.label(*mine)
    cluster.box.write(
        OWN, 'example.com/pool: training\nexample.com/gpu: "@nvidia.com/gpu.product"\n'
    )
    words = ("--label-node", "--sleep-interval=1s", f"--labels-file={OWN}")
    with running(cluster, account, *words) as process:
        assert wait(lambda: cluster.labels.get(f"{GPU}.count") == "8", TIMEOUT_S), log(cluster)
        found = cluster.labels
        assert found[f"{GPU}.product"] == found["example.com/gpu"] == PRODUCT
        assert found[f"{GPU}.ecc"] == "true"
        assert found["example.com/pool"] == "training"
        assert found["example.com/mine"] == "1"
        node = cluster.api.get(cluster.path)
        assert "nvct-labels" in [f["manager"] for f in node["metadata"]["managedFields"]]

        cluster.label(f"{GPU}.count=9")
        assert wait(lambda: cluster.labels[f"{GPU}.count"] == "8", SOON_S), log(cluster)
        cluster.box.write(OWN, "example.com/pool: inference\n")
        process.send_signal(1)
        assert wait(lambda: "example.com/gpu" not in cluster.labels, SOON_S), log(cluster)
        assert cluster.labels["example.com/pool"] == "inference"
    assert cluster.labels[f"{GPU}.count"] == "8"  # they stay at the end


def test_labels_follow_mig_driver_and_config_file_and_never_vanish(cluster: Cluster) -> None:
    """A watch sees each version of the Node while the agent follows the three changes."""
    machine = simulated(cluster)
    for name, text in {"whole": "version: v1", "shared": SHARING, "bad": "sharing: 1"}.items():
        cluster.box.call("mkdir", "-p", CONFIGS)
        cluster.box.write(f"{CONFIGS}/{name}", text)
    with agent(cluster), watched(cluster):
        with divided(cluster, "1g.10gb,1g.10gb"):
            within_5_s(lambda: cluster.labels.get(f"{SMALL}.count") == "2", "MIG devices", cluster)
            assert cluster.labels[f"{SMALL}.memory"] == "9856"
        within_5_s(lambda: f"{SMALL}.count" not in cluster.labels, "MIG mode", cluster)
        try:
            node_changes.reload_module(node_changes.upgrade(machine, "595.71.05"))
            within_5_s(lambda: cluster.labels[DRIVER] == "595.71.05", "driver", cluster)
            cluster.label(f"{CONFIG}=shared")
            within_5_s(lambda: cluster.labels[f"{GPU}.replicas"] == "4", "config file", cluster)
            cluster.label(f"{CONFIG}=bad")
            assert wait(lambda: "; shared stays in force" in beside.log(cluster), SOON_S)
            assert cluster.labels[f"{GPU}.replicas"] == "4"
            cluster.label(f"{CONFIG}-")
            within_5_s(lambda: cluster.labels[f"{GPU}.replicas"] == "1", "label", cluster)
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
    account = kubeconfig_of(cluster, "labels-agent", ("get,list,watch,patch", "nodes"))
    settings = {
        "MIG_STRATEGY": "mixed", "CONFIG_FILE": f"{FOLDER}/agent-config.yaml",
        "CONFIG_FILE_SRCDIR": CONFIGS, "DEFAULT_CONFIG": "whole",
    }  # fmt: skip
    with beside.agent(cluster, TASKS, account, **settings):
        has_all = {f"{GPU}.count": "8", "nvidia.com/mig.strategy": "mixed", f"{GPU}.replicas": "1"}
        # An earlier test may have left labels on the Node.
        written = wait(lambda: "labels were written" in beside.log(cluster), TIMEOUT_S)
        assert written, beside.log(cluster)
        assert wait(lambda: has_all.items() <= cluster.labels.items(), TIMEOUT_S), cluster.labels
        ready = (f"{PROGRAMS}/nvct", "agent", "--ready")
        assert wait(lambda: cluster.box.call(*ready).returncode == 0, TIMEOUT_S)
        yield


@contextlib.contextmanager
def watched(cluster: Cluster) -> Iterator[None]:
    """Watch the labels of the Node; see `seen`."""
    words = ("kubectl", f"--kubeconfig={KUBECONFIG}", "get", "node", NODE, "--watch")
    with cluster.running(WATCH, *words, "-o=jsonpath={.metadata.labels}{'\\n'}"):
        assert wait(lambda: seen(cluster), TIMEOUT_S)
        yield


def within_5_s(holds: Callable[[], bool], what: str, cluster: Cluster) -> None:
    began = time.monotonic()
    assert wait(holds, RIGHT_S), f"{what}: {cluster.labels}\n{log(cluster)}"
    print(f"labels after a change of the {what}: {time.monotonic() - began:.1f} s")


def seen(cluster: Cluster) -> list[str]:
    """Return the labels of each version of the Node that the watch has seen, as JSON."""
    return [line for line in cluster.log(WATCH).splitlines() if line.endswith("}")]


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
    cluster.label("example.com/mine=1")
    done = cluster.box.call(*words_of(account, "--label-node", "--oneshot"))
    assert done.returncode == 0, done
    assert f"{GPU}.count" in cluster.labels

    done = cluster.box.call(*words_of(account, "--label-node", "--remove-labels"))

    assert done.returncode == 0, done
    assert not [key for key in cluster.labels if key.startswith("nvidia.com/")]
    assert cluster.labels["example.com/mine"] == "1"
