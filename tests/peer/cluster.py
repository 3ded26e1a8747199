# SPDX-License-Identifier: Apache-2.0
"""Records NVIDIA's device plugin and gpu-feature-discovery in pods of the tests' cluster."""

import re
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from nvct_sim import run_folder, tree
from tests.engines import conftest as engines
from tests.engines import suite
from tests.engines.box import DRIVER_ROOT, PROGRAMS, REPOSITORY, Box
from tests.engines.engines import CONFIG
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import RUNTIME_CLASSES
from tests.kubernetes.pods import Pod, run
from tests.peer import cases, gfd, kubelet, plugin
from tests.peer.cases import Case, InPods

RELEASE, CONFIG_VERSION = "trixie", 2
SETTINGS = f"""\
accept-nvidia-visible-devices-as-volume-mounts = true
[nvidia-container-runtime]
runtimes = ["{run_folder.PROGRAMS}/runc"]
"""
"""For volume mounts, and so that pods see the simulated node's /proc and /sys."""
MOUNTS = {
    "/peer": "{work}/peer",
    kubelet.FOLDER: kubelet.FOLDER,
    "/var/run/cdi": "/var/run/cdi",
    "/driver-root": DRIVER_ROOT,
}
"""Folders of the plugin's container, and of the node."""
SETTLE_S = 3.0
"""The kubelet writes the node's status every two seconds."""
REGISTER_TIMEOUT_S = 60.0
ASKS = "nvidia-smi -L"
UUID = re.compile(r" \(UUID: [^)]*\)")


def record(programs: Path, name: str, target: Path, work: Path) -> None:
    """Write a file for each start of the plugin, and the labels from a pod.

    Raises:
        ContainerNotPossibleError: a cluster cannot run here.
    """
    case = cases.IN_PODS[name]
    node = tree.create(
        case.node, cases.NODES[case.node].profile, work / "nodes",
        native_cache=REPOSITORY / ".cache/native",
    )  # fmt: skip
    engines.images(work)
    shutil.copytree(programs, work / "peer")
    box = Box(suite.tree(RELEASE), node, work, DRIVER_ROOT)
    try:
        containerd = SupervisedContainerd(box, CONFIG_VERSION)
        containerd.start()
        cluster = Cluster(containerd)
        _configure(cluster)
        target.mkdir(parents=True)
        labels = run(cluster.api, "labels", _gfd_pod(cluster)).log
        (target / "gpu-feature-discovery.labels").write_text(labels)
        for start_name, start in case.starts.items():
            answers = {"flags": list(start.flags), **_record(cluster, case, start)}
            (target / f"{start_name}.json").write_text(f"{plugin.written(answers)}\n")
    finally:
        box.close()
        tree.destroy(node)


def _configure(cluster: Cluster) -> None:
    box = cluster.box
    box.write(CONFIG, SETTINGS + box.read(CONFIG))
    cluster.engine.configure("--cdi.enabled")
    cluster.engine.reload()
    for runtime_class in yaml.safe_load_all(RUNTIME_CLASSES.read_text(encoding="utf-8")):
        cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)


def _peer_pod(cluster: Cluster, script: str) -> Pod:
    mounts = {path: source.format(work=cluster.box.work) for path, source in MOUNTS.items()}
    names = {path: f"volume-{number}" for number, path in enumerate(mounts)}
    return Pod(
        script=script, runtime_class="nvidia", env={"NVIDIA_VISIBLE_DEVICES": "all"},
        container={
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": name, "mountPath": path} for path, name in names.items()],
        },
        spec={
            "volumes": [
                {
                    "name": names[path],
                    "hostPath": {"path": source, "type": "DirectoryOrCreate"},
                }
                for path, source in mounts.items()
            ]
        },
    )  # fmt: skip


def _gfd_pod(cluster: Cluster) -> Pod:
    command = " ".join([f"/peer/{gfd.PROGRAM}", *gfd.COMMON, "--machine-type-file=/tmp/machine"])
    return _peer_pod(
        cluster,
        f"echo '{cases.MACHINE}' > /tmp/machine;"
        f"{command} --output-file=/tmp/labels 2> /tmp/log || cat /tmp/log; sort /tmp/labels",
    )


def _record(cluster: Cluster, case: InPods, start: Case) -> dict[str, Any]:
    """Run the plugin in a pod, request each resource, and return the results."""
    flags = (f"--nvidia-driver-root={DRIVER_ROOT}", f"--nvidia-ctk-path={PROGRAMS}/nvidia-ctk")
    command = " ".join([f"exec /peer/{plugin.PROGRAM}", *flags, *start.flags])
    api, path = cluster.api, f"{PODS}/plugin"
    api.create(PODS, _peer_pod(cluster, command).manifest("plugin"))
    try:
        registered = f"Registered device plugin for '{case.resources[-1]}'"
        assert wait(lambda: registered in _log(cluster), REGISTER_TIMEOUT_S), _log(cluster)
        time.sleep(SETTLE_S)
        assert wait(lambda: _allocatable(cluster), REGISTER_TIMEOUT_S)
        return {
            "allocatable": _allocatable(cluster),
            "pods": {resource: _ask(cluster, resource) for resource in case.resources},
        }
    finally:
        api.delete(path)
        assert wait(lambda: api.find(path) is None, REGISTER_TIMEOUT_S)


def _log(cluster: Cluster) -> str:
    found = cluster.api.find(f"{PODS}/plugin")
    running = found is not None and found["status"]["phase"] != "Pending"
    return cluster.api.logs("plugin") if running else ""


def _allocatable(cluster: Cluster) -> dict[str, str]:
    """Return the node's non-zero allocatable resources that the plugin serves."""
    node = cluster.api.find(f"/api/v1/nodes/{NODE}")
    assert node is not None
    every = node["status"]["allocatable"].items()
    return {name: n for name, n in every if name.startswith("nvidia.com/") and n != "0"}


def _ask(cluster: Cluster, resource: str) -> dict[str, Any]:
    """Return what a pod with a request for two devices sees; the choice of devices is random."""
    limits = {"resources": {"limits": {resource: 2}}}
    result = run(cluster.api, "asks", Pod(script=ASKS, runtime_class="nvidia", container=limits))
    return {"phase": result.phase, "nvidia-smi -L": UUID.sub("", result.log).splitlines()}
