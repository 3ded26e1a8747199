# SPDX-License-Identifier: Apache-2.0
"""The device plugin in a pod, and pods that ask for its resources.

The plugin's container has the host's Python and this checkout; tests/kubernetes/test_image.py has the
image.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct_sim import run_folder, tree
from tests.engines.box import DRIVER_ROOT, PROGRAMS, REPOSITORY, Box
from tests.engines.engines import CONFIG
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node import ClusterNode
from tests.kubernetes.pods import Pod

MANIFESTS = REPOSITORY / "packaging/kubernetes"
RUNTIME_CLASSES = MANIFESTS / "runtimeclasses.yaml"
GPUS = 8
"""Of the simulated node."""
TIMEOUT_S = 60.0
LIST = "nvidia-smi -L"
PLUGIN = "plugin"
ON_HOST = "plugin.log"
REGISTERED = "Registered device plugin for 'nvidia.com/"
ENGINE_CONFIG = "/etc/containerd/config.toml"
DEFAULT_RUNC = "SystemdCgroup = false"
MOUNTS = {
    "/usr": "/usr",
    "/lib": "/usr/lib",
    "/lib64": "/usr/lib64",
    "/etc/ld.so.cache": "/etc/ld.so.cache",
    str(REPOSITORY): str(REPOSITORY),
    FOLDER: FOLDER,
    "/var/run/cdi": "/var/run/cdi",
    "/driver-root": DRIVER_ROOT,
    "/dev": "/dev",
}
"""Of the plugin's container: the host's Python and this checkout stand in for an image. NVML shows
MIG devices whose nodes are there, so new ones need the host's own /dev."""
LOW_LEVEL = f'[nvidia-container-runtime]\nruntimes = ["{run_folder.PROGRAMS}/runc"]\n'
SETTINGS = "accept-nvidia-visible-devices-as-volume-mounts = true\n"


def show_simulation(box: Box) -> None:
    """Make containers see the simulated /proc, and pods get GPUs by volume mounts."""
    box.write(CONFIG, SETTINGS + box.read(CONFIG) + LOW_LEVEL)
    use_simulated_runc(box)


def use_simulated_runc(box: Box) -> None:
    """Make containerd start the runc whose containers see the simulated /proc."""
    config = box.read(ENGINE_CONFIG)
    assert DEFAULT_RUNC in config
    runc = f'BinaryName = "{run_folder.PROGRAMS}/runc"'
    box.write(ENGINE_CONFIG, config.replace(DEFAULT_RUNC, f"{DEFAULT_RUNC}\n{runc}"))


def configure(node: ClusterNode, *flags: str) -> None:
    """Configure a node's engine for GPUs, with flags of `nvct runtime`; see `show_simulation`."""
    assert isinstance(node.engine, SupervisedContainerd)
    show_simulation(node.box)
    node.engine.configure("--cdi.enabled", *flags)
    node.engine.reload()


def prepare(cluster: Cluster, *flags: str) -> None:
    """Configure the engine for GPUs, and create the runtime classes."""
    configure(cluster, *flags)
    for runtime_class in yaml.safe_load_all(RUNTIME_CLASSES.read_text(encoding="utf-8")):
        cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)


@contextlib.contextmanager
def plugin(
    cluster: Cluster,
    *flags: str,
    name: str = PLUGIN,
    config: str = "",
    mounts: Mapping[str, str] = MOUNTS,
) -> Iterator[str]:
    """Run the plugin in a pod until it has registered; yield the pod's name."""
    if config:
        cluster.box.write(f"{FOLDER}/{name}.yaml", config)
        flags = (*flags, f"--config-file={FOLDER}/{name}.yaml")
    words = [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "nvidia-device-plugin",
        f"--nvidia-driver-root={DRIVER_ROOT}", f"--nvidia-ctk-path={PROGRAMS}/nvidia-ctk", *flags,
    ]  # fmt: skip
    names = {path: f"volume-{number}" for number, path in enumerate(mounts)}
    pod = Pod(
        script=f"exec {' '.join(words)}",
        container={
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": names[path], "mountPath": path} for path in mounts],
        },
        spec={
            "restartPolicy": "Always",
            "volumes": [
                {"name": names[path], "hostPath": {"path": source}}
                for path, source in mounts.items()
            ],
        },
    )
    cluster.api.create(PODS, pod.manifest(name))
    try:
        assert wait(lambda: REGISTERED in log(cluster, name), TIMEOUT_S), state(cluster, name)
        yield name
    finally:
        cluster.api.delete(f"{PODS}/{name}")
        assert wait(lambda: cluster.api.find(f"{PODS}/{name}") is None, TIMEOUT_S)


@contextlib.contextmanager
def plugin_on_host(cluster: Cluster, *flags: str) -> Iterator[None]:
    """Run the plugin on the node until it has registered: CRI-O has no privileged pods here."""
    words = (
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.core.program", "nvidia-device-plugin",
        f"--nvidia-driver-root={DRIVER_ROOT}", f"--driver-root-ctr-path={DRIVER_ROOT}",
        f"--nvidia-ctk-path={PROGRAMS}/nvidia-ctk", *flags,
    )  # fmt: skip
    (cluster.box.work / ON_HOST).unlink(missing_ok=True)
    with cluster.running(ON_HOST, *words):
        assert wait(lambda: REGISTERED in cluster.log(ON_HOST), TIMEOUT_S), cluster.log(ON_HOST)
        yield
    assert wait(lambda: allocatable(cluster) == 0, TIMEOUT_S)


@contextlib.contextmanager
def ruled(cluster: Cluster, rules: str) -> Iterator[None]:
    """Add rules of the policy to config.toml for a while."""
    before = cluster.box.read(CONFIG)
    cluster.box.write(CONFIG, f"{before}\n{rules}")
    try:
        yield
    finally:
        cluster.box.write(CONFIG, before)


def uuids(cluster: Cluster) -> list[str]:
    """Return the UUIDs of the node's GPUs, in their order."""
    said = cluster.box.call("sh", "-c", "cat /proc/driver/nvidia/gpus/*/information").stdout
    found = re.findall(r"^GPU UUID:\s+(\S+)$", said, re.MULTILINE)
    assert len(found) == GPUS, said
    return found


def smi(cluster: Cluster, *words: str) -> str:
    """Run nvidia-smi beside the node's daemons, and return its output."""
    libraries = {"LD_LIBRARY_PATH": f"{DRIVER_ROOT}/usr/lib/x86_64-linux-gnu"}
    done = cluster.box.call(f"{DRIVER_ROOT}/usr/bin/nvidia-smi", *words, env=libraries)
    assert done.returncode == 0, done
    return done.stdout


def divide(cluster: Cluster, profiles: str, gpu: int = 0) -> None:
    """Make MIG devices on a GPU."""
    smi(cluster, "-i", f"{gpu}", "-mig", "1")
    smi(cluster, "mig", "-i", f"{gpu}", "-cgi", profiles, "-C")


def unite(cluster: Cluster, gpu: int = 0) -> None:
    """Remove all MIG devices of a GPU, and take it out of MIG mode."""
    smi(cluster, "mig", "-i", f"{gpu}", "-dci")
    smi(cluster, "mig", "-i", f"{gpu}", "-dgi")
    smi(cluster, "-i", f"{gpu}", "-mig", "0")


@contextlib.contextmanager
def divided(cluster: Cluster, profiles: str) -> Iterator[None]:
    """Have MIG devices on the first GPU for a while."""
    divide(cluster, profiles)
    try:
        yield
    finally:
        unite(cluster)


def restarts(cluster: Cluster, pod: str) -> int:
    """Return how often the kubelet has started a pod's containers again."""
    found = cluster.api.find(f"{PODS}/{pod}")
    statuses = found["status"].get("containerStatuses", ()) if found else ()
    return sum(status["restartCount"] for status in statuses)


def asks(
    count: int, script: str = LIST, name: str = GPU, runtime_class: str = "nvidia", **more: Any
) -> Pod:
    """Return a pod that asks for so many devices of a resource; `more` are fields of Pod."""
    limits = {"resources": {"limits": {name: count}}}
    return Pod(script=script, runtime_class=runtime_class, container=limits, **more)


def allocatable(cluster: Cluster, name: str = GPU) -> int:
    """Return how many devices of a resource the Node object shows."""
    node = cluster.api.get(cluster.path)
    return int(node["status"]["allocatable"].get(name, 0))


def log(cluster: Cluster, pod: str) -> str:
    """Return the log of a pod, "" if it has none yet."""
    with contextlib.suppress(Exception):  # its kubelet or container may be starting
        return cluster.api.logs(pod)
    return ""


def state(cluster: Cluster, pod: str) -> str:
    """Return what explains a failure: a pod's log and events, and the kubelet's last lines."""
    return "\n".join([log(cluster, pod), *cluster.api.events(pod), kubelet_log(cluster)])


def kubelet_log(cluster: Cluster) -> str:
    """Return the kubelet's last lines about devices and plugins."""
    text = (Path(cluster.box.work) / "kubelet.log").read_text(errors="replace")
    return "\n".join(
        [line for line in text.splitlines() if "evice" in line or "lugin" in line][-20:]
    )


def simulated(cluster: Cluster) -> tree.Node:
    """Return the simulated node, for changes of it."""
    (node,) = tree.list_nodes(cluster.box.work / "nodes")
    return node
