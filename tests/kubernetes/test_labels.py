# SPDX-License-Identifier: Apache-2.0
"""Feature labels on a real API server: Node, NodeFeature, rights; the program runs on the node."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pytest

from nvct.sim import node_changes, tree
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import ApiError, wait
from tests.kubernetes.cluster import FOLDER, KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import simulated, smi

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from typing import Any

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
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures"
FEATURE = f"{FEATURES}/nvidia-features-for-{NODE}"
OWN = f"{FOLDER}/own-labels.yaml"
SETTINGS = f"{FOLDER}/labels-settings.yaml"
SHARING = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n"
DRIVER = "nvidia.com/cuda.driver-version.full"
ROLE = "rules: [{apiGroups: [''], resources: [nodes], verbs: [get, patch]}]"
CRD_NAME = "nodefeatures.nfd.k8s-sigs.io"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD_NAME},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "labels": {
                                        "type": "object",
                                        "additionalProperties": {"type": "string"},
                                    },
                                    "features": {
                                        "type": "object",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
"""Of Node Feature Discovery, what matters here."""


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> str:
    """A service account that may get and patch Nodes; return its kubeconfig."""
    return kubeconfig_of(cluster, "labels", may="get,patch")


def words_of(kubeconfig: str, *flags: str) -> list[str]:
    return [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.labels.main",
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


def log(cluster: Cluster) -> str:
    return (Path(cluster.box.work) / "labels.log").read_text(errors="replace")


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


def test_labels_follow_driver_and_settings_and_never_vanish(
    cluster: Cluster, account: str
) -> None:
    """A watch sees each version of the Node while both change."""
    machine = simulated(cluster)
    watch = ["kubectl", f"--kubeconfig={KUBECONFIG}", "get", "node", NODE, "--watch"]
    cluster.box.write(SETTINGS, "version: v1\n")
    words = ("--label-node", f"--config-file={SETTINGS}")
    with running(cluster, account, *words):
        assert wait(lambda: labels(cluster).get(f"{GPU}.count") == "8", TIMEOUT_S), log(cluster)
        format_ = "-o=jsonpath={.metadata.labels}{'\\n'}"
        watching = cluster.box.start([*watch, format_], "watch.log")
        try:
            assert wait(lambda: seen(cluster), TIMEOUT_S)
            upgraded = node_changes.upgrade(machine, "595.71.05")
            node_changes.reload_module(upgraded)
            within_5_s(lambda: labels(cluster)[DRIVER] == "595.71.05", "driver", cluster)

            cluster.box.write(SETTINGS, SHARING)
            read_settings(cluster)
            within_5_s(lambda: labels(cluster)[f"{GPU}.replicas"] == "4", "settings", cluster)
            cluster.box.write(SETTINGS, "sharing: {timeSlicing: {}}")
            read_settings(cluster)
            assert wait(lambda: "the settings stay as they were" in log(cluster), SOON_S)
            time.sleep(1)
            assert labels(cluster)[f"{GPU}.replicas"] == "4"
            assert wait(lambda: any("-SHARED" in text for text in seen(cluster)), SOON_S)
        finally:
            watching.terminate()
            watching.wait(TIMEOUT_S)
            (now,) = tree.list_nodes(machine.tree.parent)
            node_changes.reload_module(node_changes.upgrade(now, machine.installed))
    versions = [json.loads(text) for text in seen(cluster)]
    assert {version[DRIVER] for version in versions} == {machine.installed, "595.71.05"}
    for version in versions:
        assert version.keys() >= versions[0].keys(), version


def read_settings(cluster: Cluster) -> None:
    """Send the program, which is the oldest of its processes, SIGHUP."""
    done = cluster.box.call("pkill", "-HUP", "-o", "-f", "nvct.agent.labels.main")
    assert done.returncode == 0, done


def within_5_s(holds: Callable[[], bool], what: str, cluster: Cluster) -> None:
    began = time.monotonic()
    assert wait(holds, RIGHT_S), (what, labels(cluster), log(cluster))
    print(f"labels after a change of the {what}: {time.monotonic() - began:.1f} s")


def seen(cluster: Cluster) -> list[str]:
    """Return the labels of each version of the Node that the watch has seen, as JSON."""
    text = (Path(cluster.box.work) / "watch.log").read_text()
    return [line for line in text.splitlines() if line.endswith("}")]


def test_a_nodefeature_object_has_the_labels_and_nothing_else(cluster: Cluster) -> None:
    oneshot = ("--oneshot", "--pod-name=nowhere")
    done = cluster.box.call(*words_of(KUBECONFIG, *oneshot))
    assert done.returncode == 1, done
    assert "the cluster has no NodeFeature objects" in done.stderr, done
    cluster.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
    cluster.kubectl("wait", "--for=condition=Established", "crd", CRD_NAME, "--timeout=60s")
    assert wait(lambda: is_served(cluster), TIMEOUT_S)
    old: dict[str, Any] = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": f"nvidia-features-for-{NODE}"},
        "spec": {"labels": {f"{SMALL}.count": "7"}},
    }
    cluster.api.create(FEATURES, old)

    done = cluster.box.call(*words_of(KUBECONFIG, *oneshot))

    assert done.returncode == 0, done
    assert "there is no pod nowhere" in done.stderr, done
    feature = cluster.api.find(FEATURE)
    assert feature is not None
    assert feature["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
    written = feature["spec"]["labels"]
    assert written[f"{GPU}.product"] == PRODUCT
    assert f"{SMALL}.count" not in written
    version = feature["metadata"]["resourceVersion"]
    done = cluster.box.call(*words_of(KUBECONFIG, *oneshot, "--no-timestamp"))
    assert done.returncode == 0, done
    again = cluster.api.find(FEATURE)
    assert again is not None
    assert again["spec"]["labels"].keys() == written.keys() - {"nvidia.com/gfd.timestamp"}
    cluster.box.call(*words_of(KUBECONFIG, *oneshot, "--no-timestamp"))
    unchanged = cluster.api.find(FEATURE)
    assert unchanged is not None
    assert (
        unchanged["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"] > version
    )


def is_served(cluster: Cluster) -> bool:
    try:
        return cluster.api.find(FEATURES) is not None
    except ApiError:  # 429, as long as its storage is made
        return False


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
