# SPDX-License-Identifier: Apache-2.0
"""nvct's device plugin with a real kubelet: pods get the GPUs that they ask for, and no others."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct.sim import inside
from tests.engines.box import DRIVER_ROOT, PROGRAMS, REPOSITORY
from tests.engines.checks import UUID
from tests.engines.engines import CONFIG
from tests.engines.releases import of_release
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.pods import Pod, run, run_all
from tests.kubernetes.test_pods import CLASSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
GPUS = 8
TIMEOUT_S = 60.0
LIST = "nvidia-smi -L"
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
}
"""Of the plugin's container: the host's Python and this checkout stand in for an image."""
SETTINGS = "accept-nvidia-visible-devices-as-volume-mounts = true\n"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster after `nvct runtime configure`; its containers see the simulated /proc."""
    box, engine = cluster.box, cluster.engine
    assert isinstance(engine, SupervisedContainerd)
    box.write(CONFIG, SETTINGS + box.read(CONFIG))
    config = box.read(ENGINE_CONFIG)
    assert DEFAULT_RUNC in config
    runc = f'BinaryName = "{inside.PROGRAMS}/runc"'
    box.write(ENGINE_CONFIG, config.replace(DEFAULT_RUNC, f"{DEFAULT_RUNC}\n{runc}"))
    engine.configure("--cdi.enabled")
    engine.reload()
    for runtime_class in yaml.safe_load_all(CLASSES.read_text(encoding="utf-8")):
        cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)
    return cluster


@contextlib.contextmanager
def plugin(cluster: Cluster, *flags: str) -> Iterator[str]:
    """Run the plugin in a pod until its resources are allocatable; yield the pod's name."""
    name = "plugin"
    words = [
        f"{PROGRAMS}/python", "-I", "-m", "nvct.agent.device_plugin.main",
        f"--nvidia-driver-root={DRIVER_ROOT}", f"--nvidia-ctk-path={PROGRAMS}/nvidia-ctk", *flags,
    ]  # fmt: skip
    names = {path: f"volume-{number}" for number, path in enumerate(MOUNTS)}
    pod = Pod(
        script=f"exec {' '.join(words)}",
        container={
            "securityContext": {"privileged": True},
            "volumeMounts": [{"name": names[path], "mountPath": path} for path in MOUNTS],
        },
        spec={
            "volumes": [
                {"name": names[path], "hostPath": {"path": source}}
                for path, source in MOUNTS.items()
            ]
        },
    )
    cluster.api.create(PODS, pod.manifest(name))
    try:
        registered = f"Registered device plugin for '{GPU}'"
        assert wait(lambda: registered in _log(cluster, name), TIMEOUT_S), _state(cluster, name)
        yield name
    finally:
        cluster.api.delete(f"{PODS}/{name}")
        assert wait(lambda: cluster.api.find(f"{PODS}/{name}") is None, TIMEOUT_S)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_pods_see_exactly_the_gpus_that_they_ask_for(strategy: str, node: Cluster) -> None:
    with plugin(node, f"--device-list-strategy={strategy}"):
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S), _state(node, "plugin")
        script = f"{LIST}; sleep 3"  # so that both have theirs at the same time
        results = run_all(node.api, {f"asks-{n}": _asks(n, script) for n in (1, 2)})
        every = run(node.api, "asks-8", _asks(GPUS))

    one, two, eight = (
        UUID.findall(result.log) for result in (results["asks-1"], results["asks-2"], every)
    )
    assert (len(one), len(two), len(set(one + two))) == (1, 2, 3), (results, every)
    assert len(set(eight)) == GPUS, every
    assert set(one + two) <= set(eight)


def test_a_pod_without_a_request_sees_none_as_shipped(node: Cluster) -> None:
    with plugin(node):
        image_says_all = Pod(
            script="ls /dev | grep -c nvidia", env={"NVIDIA_VISIBLE_DEVICES": "all"}
        )
        assert run(node.api, "asks-nothing", image_says_all).lines == ["0"]


def test_a_restarted_kubelet_has_the_resource_again_and_pods_keep_theirs(node: Cluster) -> None:
    with plugin(node):
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S)
        path = f"{PODS}/stays"
        node.api.create(PODS, _asks(1, f"{LIST}; sleep 600").manifest("stays"))
        try:
            assert wait(lambda: UUID.findall(_log(node, "stays")), TIMEOUT_S)
            before = _log(node, "plugin").count("Registered device plugin")
            node.restart_kubelet()
            began = time.monotonic()
            assert wait(
                lambda: _log(node, "plugin").count("Registered device plugin") > before, TIMEOUT_S
            ), _state(node, "plugin")
            print(f"registered again {time.monotonic() - began:.1f} s after the kubelet's end")
            rest = run(node.api, "asks-7", _asks(GPUS - 1))
            taken = UUID.findall(_log(node, "stays"))
            others = UUID.findall(rest.log)
            assert len(others) == GPUS - 1, (rest, _state(node, "plugin"))
            assert not set(taken) & set(others)
        finally:
            node.api.delete(path)


def _asks(count: int, script: str = LIST) -> Pod:
    limits = {"resources": {"limits": {GPU: count}}}
    return Pod(script=script, runtime_class="nvidia", container=limits)


def _allocatable(cluster: Cluster) -> int:
    node = cluster.api.find(f"/api/v1/nodes/{NODE}")
    assert node is not None
    return int(node["status"]["allocatable"].get(GPU, 0))


def _log(cluster: Cluster, pod: str) -> str:
    found = cluster.api.find(f"{PODS}/{pod}")
    runs = found is not None and found["status"]["phase"] != "Pending"
    with contextlib.suppress(Exception):  # its kubelet may be starting
        return cluster.api.logs(pod) if runs else ""
    return ""


def _state(cluster: Cluster, pod: str) -> str:
    events = cluster.api.events(pod)
    kubelet = (Path(cluster.box.work) / "kubelet.log").read_text(errors="replace")
    lines = [line for line in kubelet.splitlines() if "evice" in line or "lugin" in line]
    return "\n".join([_log(cluster, pod), *events, *lines[-20:]])
