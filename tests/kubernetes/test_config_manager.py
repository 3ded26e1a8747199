# SPDX-License-Identifier: Apache-2.0
"""A node's config file by its label, on a real API server; the program runs on the node."""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.box import PROGRAMS
from tests.engines.releases import of_release
from tests.kubernetes.accounts import kubeconfig_of
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import FOLDER, NODE, Cluster
from tests.kubernetes.pods import Pod

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
TIMEOUT_S = 60.0
SOON_S = 10.0
LABEL = "nvidia.com/device-plugin.config"
SOURCE, TARGET = f"{FOLDER}/available-configs", f"{FOLDER}/config.yaml"
CONFIGS = {name: f"version: v1\nflags: {{migStrategy: {name}}}\n" for name in ("single", "mixed")}


@pytest.fixture(scope="module")
def account(cluster: Cluster) -> str:
    """A service account that may watch Nodes, and config files; return its kubeconfig."""
    for name, text in CONFIGS.items():
        cluster.box.call("mkdir", "-p", SOURCE)
        cluster.box.write(f"{SOURCE}/{name}", text)
    return kubeconfig_of(cluster, "config", may="get,list,watch")


def words_of(kubeconfig: str, *flags: str) -> list[str]:
    return [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "config-manager",
        f"--kubeconfig={kubeconfig}", f"--node-name={NODE}", f"--config-file-srcdir={SOURCE}",
        f"--config-file-dst={TARGET}", "--process-to-signal=test-plugin", *flags,
    ]  # fmt: skip


@contextlib.contextmanager
def running(cluster: Cluster, arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = cluster.box.start(arguments, "config.log")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def log(cluster: Cluster) -> str:
    return (Path(cluster.box.work) / "config.log").read_text(errors="replace")


def in_force(cluster: Cluster) -> str:
    return cluster.box.call("cat", TARGET).stdout


def test_the_label_is_read_before_the_first_file_is_written(
    cluster: Cluster, account: str
) -> None:
    cluster.kubectl("label", "--overwrite", "node", NODE, f"{LABEL}=mixed")

    done = cluster.box.call(*words_of(account, "--oneshot", "--default-config=single"))

    assert done.returncode == 0, done
    assert in_force(cluster) == CONFIGS["mixed"]


def test_a_changed_label_is_followed_and_the_program_gets_a_signal(
    cluster: Cluster, account: str
) -> None:
    cluster.kubectl("label", "--overwrite", "node", NODE, f"{LABEL}=mixed")
    plugin = ["bash", "-c", "exec -a test-plugin sleep 600"]  # which SIGHUP ends
    with running(cluster, plugin) as signaled, running(cluster, words_of(account)):
        assert wait(lambda: in_force(cluster) == CONFIGS["mixed"], TIMEOUT_S), log(cluster)
        cluster.kubectl("label", "--overwrite", "node", NODE, f"{LABEL}=single")
        assert wait(lambda: in_force(cluster) == CONFIGS["single"], SOON_S), log(cluster)
        assert wait(lambda: signaled.poll() is not None, SOON_S), log(cluster)

        cluster.kubectl("label", "--overwrite", "node", NODE, f"{LABEL}=nothing")
        sentence = f"label {LABEL} of node {NODE} names the config file 'nothing'"
        assert wait(lambda: sentence in log(cluster), SOON_S), log(cluster)
        assert in_force(cluster) == CONFIGS["single"]
        cluster.box.write(f"{SOURCE}/nothing", "flags: {migStrategy: none}")
        assert wait(lambda: "none" in in_force(cluster), SOON_S), log(cluster)


def test_a_changed_config_map_is_taken_up_and_a_malformed_one_is_not(
    cluster: Cluster, account: str
) -> None:
    """The volume is the kubelet's own, of a pod beside the program."""
    cluster.kubectl("label", "--overwrite", "node", NODE, f"{LABEL}=single")
    cluster.kubectl("create", "configmap", "configs", f"--from-literal=single={CONFIGS['single']}")
    cluster.api.create(PODS, HAS_CONFIGS.manifest("has-configs"))
    path = f"{PODS}/has-configs"
    try:
        assert wait(lambda: phase(cluster, path) == "Running", TIMEOUT_S)
        pod = cluster.api.find(path)
        assert pod is not None
        volumes = f"/var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes"
        source = f"--config-file-srcdir={volumes}/kubernetes.io~configmap/configs"
        with running(cluster, words_of(account, source)):
            assert wait(lambda: in_force(cluster) == CONFIGS["single"], SOON_S), log(cluster)
            change(cluster, CONFIGS["mixed"])
            assert wait(lambda: in_force(cluster) == CONFIGS["mixed"], TIMEOUT_S), log(cluster)

            change(cluster, "flags: {migStrategy: [}")
            assert wait(lambda: "single is malformed in line" in log(cluster), TIMEOUT_S), log(
                cluster
            )
            assert in_force(cluster) == CONFIGS["mixed"]
            change(cluster, CONFIGS["single"])
            assert wait(lambda: in_force(cluster) == CONFIGS["single"], TIMEOUT_S), log(cluster)
    finally:
        cluster.api.delete(path)
        cluster.kubectl("delete", "configmap", "configs")


HAS_CONFIGS = Pod(
    script="sleep 600",
    container={"volumeMounts": [{"name": "configs", "mountPath": "/configs"}]},
    spec={"volumes": [{"name": "configs", "configMap": {"name": "configs"}}]},
)


def change(cluster: Cluster, text: str) -> None:
    """Change the ConfigMap; a change of the pod has the kubelet update its volume at once."""
    patch = json.dumps({"data": {"single": text}})
    cluster.kubectl("patch", "configmap", "configs", "--type=merge", f"--patch={patch}")
    time.sleep(1)  # the kubelet watches the ConfigMap
    cluster.kubectl("annotate", "--overwrite", "pod", "has-configs", f"changed={time.time()}")


def phase(cluster: Cluster, path: str) -> str:
    pod = cluster.api.find(path)
    return str(pod["status"].get("phase")) if pod else ""


def test_who_may_not_watch_is_named(cluster: Cluster) -> None:
    kubeconfig = kubeconfig_of(cluster, "blind")
    with running(cluster, words_of(kubeconfig)):
        sentence = "this account may not watch nodes"
        assert wait(lambda: sentence in log(cluster), TIMEOUT_S), log(cluster)
        assert "grant it by a ClusterRole: verb watch, resource nodes" in log(cluster)
