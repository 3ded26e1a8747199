# SPDX-License-Identifier: Apache-2.0
"""nvct's device plugin with a real kubelet: pods get the GPUs that they ask for, and no others."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import time
from pathlib import Path

import pytest
import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct.sim import run_folder
from tests.engines.box import DRIVER_ROOT, PROGRAMS, REPOSITORY
from tests.engines.checks import UUID
from tests.engines.engines import CONFIG
from tests.engines.supervised import SupervisedContainerd
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.conftest import CONTAINERD
from tests.kubernetes.pods import Pod, run, run_all
from tests.kubernetes.test_pods import CLASSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", CONTAINERD, indirect=True),
]
STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
GPUS = 8
TIMEOUT_S = 60.0
SETTLE_S = 1.5
LIST = "nvidia-smi -L"
REGISTERED = "Registered device plugin for 'nvidia.com/"
SMALL = "nvidia.com/mig-1g.10gb"
MIG_UUID = re.compile(r"UUID: (MIG-[0-9a-f-]+)")
CROWD = 100 if os.environ.get("NVCT_TESTS_PROFILE") == "full" else 16
"""Pods."""
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
SETTINGS = "accept-nvidia-visible-devices-as-volume-mounts = true\n"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Cluster:
    """Return the cluster after `nvct runtime configure`; its containers see the simulated /proc."""
    box, engine = cluster.box, cluster.engine
    assert isinstance(engine, SupervisedContainerd)
    box.write(CONFIG, SETTINGS + box.read(CONFIG))
    config = box.read(ENGINE_CONFIG)
    assert DEFAULT_RUNC in config
    runc = f'BinaryName = "{run_folder.PROGRAMS}/runc"'
    box.write(ENGINE_CONFIG, config.replace(DEFAULT_RUNC, f"{DEFAULT_RUNC}\n{runc}"))
    engine.configure("--cdi.enabled")
    engine.reload()
    for runtime_class in yaml.safe_load_all(CLASSES.read_text(encoding="utf-8")):
        cluster.api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)
    return cluster


@contextlib.contextmanager
def plugin(cluster: Cluster, *flags: str, name: str = "plugin", config: str = "") -> Iterator[str]:
    """Run the plugin in a pod until it has registered; yield the pod's name."""
    if config:
        cluster.box.write(f"{FOLDER}/{name}.yaml", config)
        flags = (*flags, f"--config-file={FOLDER}/{name}.yaml")
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
            "restartPolicy": "Always",
            "volumes": [
                {"name": names[path], "hostPath": {"path": source}}
                for path, source in MOUNTS.items()
            ],
        },
    )
    cluster.api.create(PODS, pod.manifest(name))
    try:
        assert wait(lambda: REGISTERED in _log(cluster, name), TIMEOUT_S), _state(cluster, name)
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


def test_mig_devices_are_offered_when_they_are_made(node: Cluster) -> None:
    with plugin(node, "--mig-strategy=mixed"):
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S)
        try:
            _smi(node, "-i", "0", "-mig", "1")
            _smi(node, "mig", "-i", "0", "-cgi", "1g.10gb,1g.10gb", "-C")
            assert wait(lambda: _allocatable(node, SMALL) == 2, TIMEOUT_S), _state(node, "plugin")
            asked = {"two": _asks(2, name=SMALL), "rest": _asks(GPUS - 1)}
            results = run_all(node.api, asked)
        finally:
            _smi(node, "mig", "-i", "0", "-dci")
            _smi(node, "mig", "-i", "0", "-dgi")
            _smi(node, "-i", "0", "-mig", "0")
        assert len(MIG_UUID.findall(results["two"].log)) == 2, results
        assert len(UUID.findall(results["rest"].log)) == GPUS - 1, results
        assert wait(lambda: _allocatable(node, SMALL) == 0, TIMEOUT_S)
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S)


def test_shared_gpus_are_distributed(node: Cluster) -> None:
    rule = "{name: nvidia.com/gpu, replicas: 2}"
    config = f"sharing: {{timeSlicing: {{renameByDefault: true, resources: [{rule}]}}}}"
    shared = f"{GPU}.shared"
    with plugin(node, config=config):
        assert wait(lambda: _allocatable(node, shared) == 2 * GPUS, TIMEOUT_S)
        script = f"{LIST}; sleep 3"
        asked = {f"share-{n}": _asks(1, script, shared) for n in range(3)}
        results = run_all(node.api, asked)
        seen = [UUID.findall(result.log) for result in results.values()]
        assert sorted(map(len, seen)) == [1, 1, 1], results
        assert len({uuids[0] for uuids in seen}) == 3, results


def test_a_killed_plugin_and_one_that_is_replaced_do_not_take_the_resource_away(
    node: Cluster,
) -> None:
    with contextlib.ExitStack() as stack:
        older = stack.enter_context(plugin(node, name="older"))
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S)
        node.box.call("pkill", "-KILL", "-f", "nvct.agent.device_plugin.main")
        began = time.monotonic()
        assert wait(lambda: _restarts(node, older) == 1 and REGISTERED in _log(node, older))
        print(f"registered again {time.monotonic() - began:.1f} s after SIGKILL")
        newer = stack.enter_context(plugin(node, name="newer"))
        assert wait(lambda: "has taken" in _log(node, older), TIMEOUT_S)
        # The end of the older stream makes the kubelet drop the newer plugin (kubernetes#121994),
        # and until that one has registered again, a tenth of a second later, it admits no pod.
        time.sleep(SETTLE_S)
        assert REGISTERED in _log(node, newer).splitlines()[-1], _state(node, newer)
        node.api.delete(f"{PODS}/{older}")
        assert wait(lambda: node.api.find(f"{PODS}/{older}") is None, TIMEOUT_S)
        every = run(node.api, "asks-8", _asks(GPUS))
        assert len(UUID.findall(every.log)) == GPUS, (every, _state(node, "newer"))
        assert _allocatable(node) == GPUS


def test_no_gpu_is_given_twice(node: Cluster) -> None:
    """Many pods of several sizes, in no order: no two see the same GPU at one time."""
    chance = random.Random(1)
    moment = "cut -d' ' -f1 /proc/uptime"
    script = f"{moment}; {LIST}; sleep {{}}; {moment}"
    asked = {
        f"crowd-{n}": _asks(chance.randint(1, 5), script.format(chance.choice("012")))
        for n in range(CROWD)
    }
    with plugin(node):
        assert wait(lambda: _allocatable(node) == GPUS, TIMEOUT_S)
        results = run_all(node.api, asked)
    spans: dict[str, list[tuple[float, float]]] = {}
    for name, result in results.items():
        wanted = asked[name].container["resources"]["limits"][GPU]
        uuids = UUID.findall(result.log)
        assert len(set(uuids)) == wanted, result
        for uuid in uuids:
            spans.setdefault(uuid, []).append((float(result.lines[0]), float(result.lines[-1])))
    for ordered in (sorted(each) for each in spans.values()):
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ordered)), ordered
    assert sum(map(len, spans.values())) > CROWD


def _smi(cluster: Cluster, *words: str) -> None:
    libraries = {"LD_LIBRARY_PATH": f"{DRIVER_ROOT}/usr/lib/x86_64-linux-gnu"}
    done = cluster.box.call(f"{DRIVER_ROOT}/usr/bin/nvidia-smi", *words, env=libraries)
    assert done.returncode == 0, done


def _restarts(cluster: Cluster, pod: str) -> int:
    found = cluster.api.find(f"{PODS}/{pod}")
    statuses = found["status"].get("containerStatuses", ()) if found else ()
    return sum(status["restartCount"] for status in statuses)


def _asks(count: int, script: str = LIST, name: str = GPU) -> Pod:
    limits = {"resources": {"limits": {name: count}}}
    return Pod(script=script, runtime_class="nvidia", container=limits)


def _allocatable(cluster: Cluster, name: str = GPU) -> int:
    node = cluster.api.find(f"/api/v1/nodes/{NODE}")
    assert node is not None
    return int(node["status"]["allocatable"].get(name, 0))


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
