# SPDX-License-Identifier: Apache-2.0
"""GPUs in pods of a real Kubernetes by the runtime classes, after `nvct runtime configure`."""

import pytest

from nvct.paths import VOLUME_MOUNT_ROOT
from tests.engines.checks import NODES, UUID
from tests.engines.engines import CONFIG
from tests.kubernetes import device_plugin, pods
from tests.kubernetes.api import PODS, ApiError, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import CONTAINERD, CRIO
from tests.kubernetes.pods import Pod, Result, run_all

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [*CONTAINERD, *CRIO], indirect=True),
]
LIST = f"{NODES}; nvidia-smi -L"


def gpus(value: str, runtime_class: str = "nvidia", script: str = LIST, **more: object) -> Pod:
    """Return a pod that requests GPUs by NVIDIA_VISIBLE_DEVICES and lists them."""
    env = {"NVIDIA_VISIBLE_DEVICES": value}
    return Pod(script=script, runtime_class=runtime_class, env=env, **more)  # type: ignore[arg-type]


def mounted(device: str) -> Pod:
    """Return a pod that requests a GPU by the device plugin's volume mounts, and lists GPUs."""
    volume = {"name": "device", "hostPath": {"path": "/dev/null"}}
    mount = {"name": "device", "mountPath": f"{VOLUME_MOUNT_ROOT}/{device}"}
    return gpus(VOLUME_MOUNT_ROOT, container={"volumeMounts": [mount]}, spec={"volumes": [volume]})


SECURITY = {
    "user": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
    "seccomp": {"seccompProfile": {"type": "RuntimeDefault"}},
    "read-only": {"readOnlyRootFilesystem": True},
    "restricted": {
        "runAsUser": 1000, "runAsNonRoot": True, "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}  # fmt: skip
ONE_GPU = {
    "index": gpus("0"),
    "cdi-index": gpus("0", "nvidia-cdi"),
    "cdi-name": gpus("nvidia.com/gpu=0", "nvidia-cdi"),
    "cdi-name-of-nvidia": gpus("nvidia.com/gpu=0"),
    "legacy-index": gpus("0", "nvidia-legacy"),
    **{
        f"security-{name}": gpus("0", container={"securityContext": context})
        for name, context in SECURITY.items()
    },
}
"""Pods that get GPU 0, and only it."""
OTHERS = {
    "all": gpus("all"),
    "two": gpus("1,2"),
    "privileged": gpus("0", container={"securityContext": {"privileged": True}}),
    "none": gpus("none", script=f"{NODES}; ls /dev/nvidiactl; ldconfig -p | grep -c libcuda.so.1"),
    "void": gpus("void", script=f"{NODES}; ls /dev | grep -c nvidia"),
    "unset": Pod(script=f"{NODES}; ls /dev | grep -c nvidia", runtime_class="nvidia"),
    "default-class": gpus("all", "", script=f"{NODES}; ls /dev | grep -c nvidia"),
    "unknown": gpus("9"),
    "word": gpus("no-such-gpu"),
    "volume-mount": mounted("0"),
    "init": Pod(
        script=f"cat /shared/init; {NODES}", runtime_class="nvidia",
        container={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        spec={
            "volumes": [{"name": "shared", "emptyDir": {}}],
            "initContainers": [
                pods.container(
                    "nvidia-smi -L > /shared/init", {"NVIDIA_VISIBLE_DEVICES": "3"}, "init",
                    volumeMounts=[{"name": "shared", "mountPath": "/shared"}],
                )
            ],
        },
    ),
    "restarted": gpus(
        "4", script=f"[ -e /shared/x ] || {{ touch /shared/x; exit 1; }}; {LIST}",
        container={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        spec={
            "restartPolicy": "OnFailure",
            "volumes": [{"name": "shared", "emptyDir": {}}],
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def results(configured: Cluster) -> dict[str, Result]:
    """Return the results of all pods of the tables."""
    return run_all(configured.api, {**ONE_GPU, **OTHERS})


@pytest.fixture(scope="module")
def uuids(configured: Cluster) -> list[str]:
    """Return the UUIDs of the node's GPUs, in their order."""
    return device_plugin.uuids(configured)


@pytest.mark.parametrize("name", ONE_GPU)
def test_a_pod_gets_the_gpu_that_it_names(
    name: str, results: dict[str, Result], uuids: list[str]
) -> None:
    result = results[name]
    assert result.phase == "Succeeded", result
    assert result.lines[0] == "1", result
    assert UUID.findall(result.log) == uuids[:1], result


def test_lists_give_what_they_name(results: dict[str, Result], uuids: list[str]) -> None:
    assert UUID.findall(results["all"].log) == uuids
    assert UUID.findall(results["two"].log) == uuids[1:3]
    assert results["none"].lines == ["0", "/dev/nvidiactl", "1"]


def test_a_privileged_pod_gets_every_device_node_from_its_engine(
    configured: Cluster, results: dict[str, Result], uuids: list[str]
) -> None:
    result = results["privileged"]
    if configured.engine.can_run_privileged():
        assert UUID.findall(result.log) == uuids, result
    else:
        assert any("unable to apply caps" in event for event in result.events), result


@pytest.mark.parametrize("name", ["void", "unset", "default-class"])
def test_who_asks_for_nothing_gets_nothing(name: str, results: dict[str, Result]) -> None:
    assert results[name].lines == ["0", "0"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("unknown", "no device '9'"),
        ("word", "no-such-gpu"),
        ("volume-mount", "set accept-nvidia-visible-devices-as-volume-mounts in config.toml"),
    ],
)
def test_a_refusal_is_a_sentence_in_the_pods_events(
    name: str, sentence: str, results: dict[str, Result]
) -> None:
    result = results[name]
    assert result.phase != "Succeeded"
    assert any(sentence in event for event in result.events), result.events


def test_an_accepted_volume_mount_gives_its_gpu_or_a_sentence_in_the_events(
    configured: Cluster, uuids: list[str]
) -> None:
    config = configured.box.read(CONFIG)
    configured.box.write(CONFIG, f"{device_plugin.SETTINGS}{config}")
    try:
        results = run_all(configured.api, {"mounted": mounted("1"), "not-there": mounted("9")})
    finally:
        configured.box.write(CONFIG, config)
    assert UUID.findall(results["mounted"].log) == uuids[1:2], results
    assert any("no device '9'" in event for event in results["not-there"].events), results


def test_each_container_of_a_pod_has_its_own(results: dict[str, Result], uuids: list[str]) -> None:
    result = results["init"]
    assert UUID.findall(result.log) == uuids[3:4], result
    assert result.lines[-1] == "0", result


def test_a_container_that_is_restarted_has_its_gpu_again(
    results: dict[str, Result], uuids: list[str]
) -> None:
    assert UUID.findall(results["restarted"].log) == uuids[4:5], results["restarted"]


def test_an_ephemeral_container_gets_what_it_asks_for(
    configured: Cluster, uuids: list[str]
) -> None:
    api = configured.api
    api.create(PODS, Pod(script="sleep 600", runtime_class="nvidia").manifest("target"))
    path = f"{PODS}/target"
    try:
        assert wait(lambda: _phase(configured, path) == "Running")
        debugger = pods.container(LIST, {"NVIDIA_VISIBLE_DEVICES": "5"}, "debugger")
        patch = {"spec": {"ephemeralContainers": [debugger]}}
        kind = "application/strategic-merge-patch+json"
        api.request("PATCH", f"{path}/ephemeralcontainers", patch, kind)
        assert wait(lambda: "UUID" in _log(configured, "target", "debugger"))
        assert UUID.findall(api.logs("target", "debugger")) == uuids[5:6]
    finally:
        api.delete(path)


def test_running_pods_keep_their_gpus_when_the_kubelet_restarts(
    configured: Cluster, uuids: list[str]
) -> None:
    api, path = configured.api, f"{PODS}/stays"
    script = "while :; do nvidia-smi -L > /tmp/now; sleep 0.2; done"
    api.create(PODS, gpus("6", script=script).manifest("stays"))
    try:
        assert wait(lambda: _phase(configured, path) == "Running")
        configured.restart_kubelet()
        result = pods.run(api, "after", gpus("7"))
        assert UUID.findall(result.log) == uuids[7:8], result
        said = configured.kubectl("exec", "stays", "--", "nvidia-smi", "-L")
        assert UUID.findall(said) == uuids[6:7]
        found = api.get(path)
        assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    finally:
        api.delete(path)


def test_a_pod_with_users_of_its_own_gets_its_gpu(configured: Cluster, uuids: list[str]) -> None:
    result = pods.run(configured.api, "users", gpus("0", spec={"hostUsers": False}))
    if not configured.engine.has_user_namespaces():
        assert any("user namespace" in event for event in result.events), result
    else:
        assert UUID.findall(result.log) == uuids[:1], result


def _phase(cluster: Cluster, path: str) -> str:
    found = cluster.api.find(path)
    return str(found["status"]["phase"]) if found else ""


def _log(cluster: Cluster, pod: str, container: str) -> str:
    try:
        return cluster.api.logs(pod, container)
    except ApiError:  # it has not started yet
        return ""
