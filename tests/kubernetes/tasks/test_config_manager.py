# SPDX-License-Identifier: Apache-2.0
"""A node's config file by its label, on a real API server; the program runs on the node."""

import time
from collections.abc import Iterator

import pytest

from tests.engines.box import PROGRAMS
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import DEFAULT, PODS, wait
from tests.kubernetes.cluster import FOLDER, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.pods import Pod

pytestmark = [pytest.mark.slow, ON_ONE]
TIMEOUT_S = 60.0
SOON_S = 10.0
LABEL = "nvidia.com/device-plugin.config"
SOURCE, TARGET = f"{FOLDER}/available-configs", f"{FOLDER}/config.yaml"
CONFIGS = {name: f"version: v1\nflags: {{migStrategy: {name}}}\n" for name in ("single", "mixed")}
LOG = "config.log"
HAS_CONFIGS = Pod(
    script="sleep 600",
    container={"volumeMounts": [{"name": "configs", "mountPath": "/configs"}]},
    spec={"volumes": [{"name": "configs", "configMap": {"name": "configs"}}]},
)
MAPS = f"{DEFAULT}/configmaps"


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> Iterator[str]:
    """A service account that may watch Nodes, and config files; yield its kubeconfig."""
    cluster.box.call("mkdir", "-p", SOURCE)
    for name, text in CONFIGS.items():
        cluster.box.write(f"{SOURCE}/{name}", text)
    yield kubeconfig_of(cluster, "config", ("get,list,watch", "nodes"))
    cluster.label(f"{LABEL}-")


def words_of(kubeconfig: str, *flags: str) -> list[str]:
    return [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "config-manager",
        f"--kubeconfig={kubeconfig}", f"--node-name={NODE}", f"--config-file-srcdir={SOURCE}",
        f"--config-file-dst={TARGET}", "--process-to-signal=test-plugin", *flags,
    ]  # fmt: skip


def log(cluster: Cluster) -> str:
    return cluster.log(LOG)


def in_force(cluster: Cluster) -> str:
    try:
        return cluster.box.read(TARGET)
    except FileNotFoundError:
        return ""


def test_a_changed_label_is_followed_and_the_program_gets_a_signal(
    cluster: Cluster, account: str
) -> None:
    cluster.label(f"{LABEL}=mixed")
    done = cluster.box.call(*words_of(account, "--oneshot", "--default-config=single"))
    assert done.returncode == 0, done
    assert in_force(cluster) == CONFIGS["mixed"], "the label is read before the first file"
    plugin = ("bash", "-c", "exec -a test-plugin sleep 600")  # which SIGHUP ends
    with cluster.running("p.log", *plugin) as signaled, cluster.running(LOG, *words_of(account)):
        assert wait(lambda: in_force(cluster) == CONFIGS["mixed"], TIMEOUT_S), log(cluster)
        cluster.label(f"{LABEL}=single")
        assert wait(lambda: in_force(cluster) == CONFIGS["single"], SOON_S), log(cluster)
        assert wait(lambda: signaled.poll() is not None, SOON_S), log(cluster)

        cluster.label(f"{LABEL}=nothing")
        sentence = f"label {LABEL} of node {NODE} names the config file 'nothing'"
        assert wait(lambda: sentence in log(cluster), SOON_S), log(cluster)
        assert in_force(cluster) == CONFIGS["single"]
        cluster.box.write(f"{SOURCE}/nothing", "flags: {migStrategy: none}")
        assert wait(lambda: "none" in in_force(cluster), SOON_S), log(cluster)


def test_a_changed_config_map_is_taken_up_and_a_malformed_one_is_not(
    cluster: Cluster, account: str
) -> None:
    """The volume is the kubelet's own, of a pod beside the program."""
    cluster.label(f"{LABEL}=single")
    data = {"single": CONFIGS["single"]}
    cluster.api.create(MAPS, {"metadata": {"name": "configs"}, "data": data})
    cluster.api.create(PODS, HAS_CONFIGS.manifest("has-configs"))
    path = f"{PODS}/has-configs"
    try:
        assert wait(lambda: cluster.api.get(path)["status"]["phase"] == "Running", TIMEOUT_S)
        uid = cluster.api.get(path)["metadata"]["uid"]
        volumes = f"/var/lib/kubelet/pods/{uid}/volumes"
        source = f"--config-file-srcdir={volumes}/kubernetes.io~configmap/configs"
        with cluster.running(LOG, *words_of(account, source)):
            assert wait(lambda: in_force(cluster) == CONFIGS["single"], SOON_S), log(cluster)
            change(cluster, CONFIGS["mixed"])
            assert wait(lambda: in_force(cluster) == CONFIGS["mixed"], TIMEOUT_S), log(cluster)

            change(cluster, "flags: {migStrategy: [}")
            told = wait(lambda: "single is malformed in line" in log(cluster), TIMEOUT_S)
            assert told, log(cluster)
            assert in_force(cluster) == CONFIGS["mixed"]
            change(cluster, CONFIGS["single"])
            assert wait(lambda: in_force(cluster) == CONFIGS["single"], TIMEOUT_S), log(cluster)
    finally:
        cluster.api.delete(path)
        cluster.api.delete(f"{MAPS}/configs")


def change(cluster: Cluster, text: str) -> None:
    """Change the ConfigMap; a change of the pod has the kubelet update its volume at once."""
    cluster.api.patch(f"{MAPS}/configs", {"data": {"single": text}})
    time.sleep(1)  # the kubelet watches the ConfigMap
    now = {"changed": f"{time.time()}"}
    cluster.api.patch(f"{PODS}/has-configs", {"metadata": {"annotations": now}})
