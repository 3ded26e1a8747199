# SPDX-License-Identifier: Apache-2.0
"""packaging/helm/nvct on a real cluster: installed, used and removed."""

import json
import re
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.device_plugin.settings import FOLDER
from nvct.agent.labels.compute import PCI_PRESENT
from nvct.agent.manifests.convert import convert
from nvct.container.rootfs.view_links import OF_SPEC
from nvct.installer import publication
from tests.engines.checks import UUID
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CHART,
    CLASSES,
    FARM,
    GPUS,
    IMAGE_SAYS_ALL,
    IN_NAMESPACE,
    LIST,
    MOUNTED,
    NAMESPACE,
    TIMEOUT_S,
    TOOLKIT,
    allocatable,
    asks,
    cluster_status,
    condition_of,
    gpus_of,
    installed,
    nvidia_labels,
    state_of,
)
from tests.kubernetes.cluster import ADMIN, KUBECONFIG, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.pods import Pod, run, run_all

pytestmark = pytest.mark.slow
PAGE = CHART.parents[2] / "docs/kubernetes.md"
README = CHART.parents[2] / "README.md"
MANIFESTS = CHART.parents[1] / "kubernetes"
AGENT = "/run/nvct-agent/agent.sock"
READY_ROW = rf"(?m)^{NODE}  gpu={GPUS}  [\d.]+ +\S+ +Ready  True$"
AGENTS_MIB = 80
"""Proportional set sizes of the agent and of NVML's processes, with all tasks of the chart."""
SOCKET = f"{FOLDER}/nvidia-gpu.sock"
PULL_S = 60
"""How long the removal waits for the image of its Jobs."""


def test_pods_get_what_they_request_from_nothing(node: Cluster) -> None:
    began, said = time.monotonic(), list[str]()
    with installed(node, *FARM, said=said):
        first = run(node.api, "first", asks(""))
        print(f"nvidia-smi in a pod {time.monotonic() - began:.1f} s after helm install")
        assert gpus_of(first) == 1, first
        pod = Pod(script="ls /dev | grep -c nvidia", env=IMAGE_SAYS_ALL)
        asking = {f"asks-{name or 'none'}": asks(name) for name in CLASSES}
        silent = {f"silent-{name or 'none'}": replace(pod, runtime_class=name) for name in CLASSES}
        results = run_all(node.api, {"mounts": asks("", MOUNTED), **asking, **silent})
        mounts = results["mounts"].lines
        assert mounts.count(OF_SPEC) == 1, (mounts, state_of(node))
        assert not [path for path in mounts if path.startswith("/usr/")], mounts
        assert [gpus_of(results[name]) for name in asking] == [1] * len(CLASSES), results
        assert [results[name].lines for name in silent] == [["0"]] * len(CLASSES), results
        refuses_gpus_that_pods_name(node, UUID.findall(first.log)[0])
        assert wait(
            lambda: nvidia_labels(node).get("nvidia.com/gpu.count") == str(GPUS), TIMEOUT_S
        )
        assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
        assert wait(lambda: re.search(READY_ROW, cluster_status(node)), TIMEOUT_S), cluster_status(
            node
        )
        metrics = _served(node, "gpu-metrics", "metrics")
        assert len(re.findall(rf'(?m)^DCGM_FI_DEV_GPU_TEMP.*Hostname="{NODE}"', metrics)) == GPUS
        assert "nvct_agent_nvml_up 1" in _served(node, "agent", "metrics")
        assert _served(node, "agent", "readyz") == "ok\n"
        memory = _memory_mib(node)
        print(f"memory of the agent: {memory} MiB")
        assert sum(memory) < AGENTS_MIB, memory
        looks_at_the_node_where_it_is_seen(node)
        node.helm("test", "nvct", *IN_NAMESPACE, "--timeout=120s")
    print("\n".join(said))
    assert f"{NODE}: removed {TOOLKIT}" in said, said
    assert f"{NODE}: removed {publication.PATH}" in said, said
    assert node.box.call("ls", "/run/cdi").stdout == ""
    assert any(line.startswith(f"{NODE}: /run/nvct stays") for line in said), said


def looks_at_the_node_where_it_is_seen(node: Cluster) -> None:
    """The agent's container names the program on the node, and docs/kubernetes.md its command."""
    kubectl = ("kubectl", f"--kubeconfig={KUBECONFIG}", *IN_NAMESPACE)
    for command in ("ps", "doctor", "status"):
        done = node.box.call(*kubectl, "exec", "daemonset/nvct", "--", "nvct", command)
        assert f"`sudo {TOOLKIT}/nvct {command}` on the node" in done.stderr, done
        assert not done.stdout
    command = next(line for line in PAGE.read_text().split("\n\n") if " debug node/NODE " in line)
    words = command.partition("kubectl")[2].partition("```")[0].replace("\\\n", "").split()
    words = [word.replace("NODE", NODE).replace("doctor", "ps") for word in words]
    done = node.box.call(*kubectl, *words)
    assert "\nGPU  MIG  PID" in done.stdout, done
    node.kubectl("delete", "pod", *IN_NAMESPACE, "--selector=!app.kubernetes.io/name")


def refuses_gpus_that_pods_name(node: Cluster, uuid: str) -> None:
    """RuntimeClass x variable x annotation x mount: a pod without a request gets no GPU."""
    pod = Pod(script="ls /dev | grep -c nvidia")
    by_mount = {
        "volumeMounts": [{"name": "a", "mountPath": f"/var/run/nvidia-container-devices/{uuid}"}]
    }
    null = {"volumes": [{"name": "a", "hostPath": {"path": "/dev/null"}}]}
    names = (uuid, f"nvidia.com/gpu={uuid}", f"k8s.device-plugin.nvidia.com/gpu={uuid}")
    silent, refused = dict[str, Pod](), dict[str, Pod]()
    for name in CLASSES:
        kind, pod = name or "none", replace(pod, runtime_class=name)
        silent[f"annotation-{kind}"] = replace(pod, annotations={"cdi.k8s.io/x": names[1]})
        silent[f"mount-{kind}"] = replace(pod, container=by_mount, spec=null)
        for number, text in enumerate(names):
            pods = refused if name else silent  # runc does not read the variable
            pods[f"variable-{kind}-{number}"] = replace(pod, env={"NVIDIA_VISIBLE_DEVICES": text})
    for key, pod in refused.items():
        node.api.create(PODS, pod.manifest(key))
    results = run_all(node.api, silent)
    assert [result.lines for result in results.values()] == [["0"]] * len(silent), results
    for key in refused:
        assert wait(partial(_is_refused, node, key), TIMEOUT_S), node.api.events(key)
        node.api.delete(f"{PODS}/{key}")


def _is_refused(node: Cluster, pod: str) -> bool:
    return "policy rule 'pods ask Kubernetes for GPUs' denies" in str(node.api.events(pod))


def _memory_mib(node: Cluster) -> list[float]:
    """Return the proportional set sizes of the agent's processes and of NVML's."""
    script = "for p in $(pgrep -f 'nvct[.]agent'); do grep ^Pss: /proc/$p/smaps_rollup; done"
    lines = node.box.call("sh", "-c", script).stdout.splitlines()
    return [round(int(line.split()[1]) / 1024, 1) for line in lines]


def _served(node: Cluster, port: str, path: str) -> str:
    """Return what a port of the Service answers."""
    service = f"/api/v1/namespaces/{NAMESPACE}/services/nvct-metrics:{port}"
    return node.kubectl("get", "--raw", f"{service}/proxy/{path}")


OF_GUIDE_C = {
    "driver.enabled": "false", "operator.defaultRuntime": "containerd",
    "operator.runtimeClass": "nvidia", "cdi.enabled": "true", "cdi.default": "false",
    "mig.strategy": "single", "migManager.enabled": "true",
    "migManager.config.name": "default-mig-parted-config", "nfd.enabled": "true",
    "psp.enabled": "false", "toolkit.enabled": "true", "daemonsets.labels.team": "ml",
    "gfd.env[0].name": "GFD_EXTRA_LABELS", "gfd.env[0].value": "ecc\\,pci\\,present\\,operator",
}  # fmt: skip
"""Values that the guide to the GPU operator 1.11 explains; the last line adds gpu.deploy.*."""


@ON_ONE
def test_the_command_of_guide_c_installs_with_the_gpu_operators_values(node: Cluster) -> None:
    """Only the chart is another one, and its image."""
    before, labels, namespace = (
        node.engine.snapshot(),
        nvidia_labels(node),
        "--namespace=gpu-operator",
    )
    words = [f"--set={name}={value}" for name, value in OF_GUIDE_C.items()]
    installation = json.loads(
        node.helm("install", "--wait", "--generate-name", namespace, "--create-namespace",
                  str(CHART), *words, "--timeout=120s", "--output=json")
    )  # fmt: skip
    try:
        notes = installation["info"]["notes"]
        ignored = [line.partition(":")[0] for line in notes.splitlines() if line[:2] == "- "]
        assert ignored == ["- nfd", "- cdi.default"]
        assert gpus_of(run(node.api, "first", asks("nvidia"))) == 1
        assert wait(lambda: "nvidia.com/gpu.present" in nvidia_labels(node), TIMEOUT_S)
        found = nvidia_labels(node)
        for name in ("present", "deploy.container-toolkit", "deploy.mig-manager"):
            assert found[f"nvidia.com/gpu.{name}"] == "true"
        assert PCI_PRESENT in node.kubectl("get", "node", NODE, "--output=yaml")
        classes = node.kubectl("get", "runtimeclasses", "--output=name").split()
        assert {name.rpartition("/")[2] for name in classes} == set(CLASSES) - {""}
        assert gpus_of(run(node.api, "of-2018", _of_2018("8000"))) == 1
        node.api.create(PODS, _of_2018("90000").manifest("too-large"))
        sentence = "didn't match Pod's node affinity"
        assert wait(lambda: sentence in str(node.api.events("too-large")), TIMEOUT_S)
        node.api.delete(f"{PODS}/too-large")
    finally:
        node.helm("uninstall", installation["name"], namespace, "--wait", "--timeout=180s")
    assert node.engine.snapshot() == before
    assert nvidia_labels(node) == labels


def _of_2018(memory: str) -> Pod:
    """Return the pod of guide A, which chooses a GPU by its memory, after nvct convert."""
    required = [{"key": "nvidia.com/gpu-memory", "operator": "Gt", "values": [memory]}]
    resource = {
        "name": "gpus",
        "resources": {"limits": {GPU: 1}},
        "affinity": {"required": required},
    }
    request = {"extendedResourceRequests": ["gpus"]}
    pod = Pod(script=LIST, container=request, spec={"extendedResources": [resource]})
    converted: Any = convert(pod.manifest("of-2018"))[0]
    (container,) = converted["spec"]["containers"]
    return Pod(
        script=LIST,
        container={"resources": container["resources"]},
        spec={"affinity": converted["spec"]["affinity"]},
    )


@ON_ONE
def test_a_node_that_boots_again_comes_back_by_itself(node: Cluster) -> None:
    """/run is empty then, and each container is started again; the engine's files stay."""
    with installed(node, *FARM):
        assert gpus_of(run(node.api, "before", asks(""))) == 1, state_of(node)
        node.boot()
        containerd = node.box.call("pgrep", "-x", "containerd").stdout
        began = time.monotonic()
        assert wait(lambda: node.box.call("test", "-S", AGENT).returncode == 0, TIMEOUT_S)
        node.kubectl("rollout", "status", *IN_NAMESPACE, "daemonset/nvct", "--timeout=90s")
        after = run(node.api, "after", asks("", f"{LIST}; {MOUNTED}"))
        print(f"nvidia-smi in a pod {time.monotonic() - began:.1f} s after the kubelet's start")
        assert gpus_of(after) == 1, (after, state_of(node))
        assert after.lines.count(OF_SPEC) == 1, (after, state_of(node))
        assert node.box.call("pgrep", "-x", "containerd").stdout == containerd, "not reloaded"


@ON_ONE
def test_the_manifests_install_and_remove_it_without_helm(node: Cluster) -> None:
    """The steps of packaging/kubernetes/README.md."""
    before, labels = node.engine.snapshot(), nvidia_labels(node)
    installation, removal = (f"{MANIFESTS}/{name}" for name in ("nvct.yaml", "uninstall.yaml"))
    node.kubectl("apply", f"--filename={installation}")
    try:
        assert gpus_of(run(node.api, "first", asks(""))) == 1, state_of(node)
    finally:
        node.kubectl("apply", f"--filename={removal}")
        node.kubectl("rollout", "status", *IN_NAMESPACE, "daemonset/nvct-uninstall",
                     "--timeout=120s")  # fmt: skip
        said = node.kubectl("logs", *IN_NAMESPACE, "--container=toolkit",
                            "--selector=app.kubernetes.io/component=uninstall")  # fmt: skip
        node.kubectl("delete", "--timeout=120s", f"--filename={removal}",
                     f"--filename={installation}")  # fmt: skip
    assert f"removed {TOOLKIT}" in said
    assert node.engine.snapshot() == before
    assert nvidia_labels(node) == labels


def test_the_lines_of_the_readme() -> None:
    """test_pods_get_what_they_request_from_nothing types them, with the chart of the checkout."""
    block = README.read_text().partition("    helm repo add ")[2].partition("\n\n")[0]
    lines = [line.partition("#")[0].strip() for line in block.splitlines()[1:]]
    there = "--namespace nvct"
    assert lines == [
        f"helm install nvct nvct/nvct {there} --create-namespace", f"helm test nvct {there}",
        f"helm uninstall nvct {there}",
    ]  # fmt: skip


@ON_ONE
def test_another_device_plugin_is_named_and_not_displaced(node: Cluster) -> None:
    listener = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind({!r}); s.listen(); "
    script = f"{listener.format(SOCKET)}time.sleep(600)"
    name = "nvidia-device-plugin"
    node.box.call("sh", "-c", f"ln -sf $(readlink -f $(command -v python3)) /run/{name}")
    node.box.start([f"/run/{name}", "-c", script], "other-plugin.log")
    try:
        assert wait(lambda: node.box.call("test", "-S", SOCKET).returncode == 0)
        with installed(node):
            assert wait(lambda: "is not displaced" in state_of(node), TIMEOUT_S), state_of(node)
            assert re.search(rf"process \d+ \({name}\) serves", state_of(node)), state_of(node)
            assert allocatable(node) == 0
            sentence = f"({name}) serves"
            assert wait(lambda: sentence in cluster_status(node), TIMEOUT_S), cluster_status(node)
    finally:
        node.box.call("pkill", "-f", SOCKET)
        node.box.call("rm", "-f", SOCKET)


@ON_ONE
def test_a_release_whose_image_cannot_be_pulled_is_gone_after_a_minute(node: Cluster) -> None:
    """helm ends with an error, because it cannot know that nothing was installed on a node."""
    before = node.engine.snapshot()
    node.helm("install", "nvct", str(CHART), *IN_NAMESPACE, "--create-namespace",
              "--set=image.repository=registry.invalid/nvct")  # fmt: skip
    began = time.monotonic()
    done = node.box.call("helm", "uninstall", "nvct", *IN_NAMESPACE, env=ADMIN, timeout=400)
    took = time.monotonic() - began
    assert "Job/nvct/nvct-uninstall-pull not ready" in done.stderr, done
    assert PULL_S <= took < PULL_S + 30, (took, done)
    release = ("get", "secrets", *IN_NAMESPACE, "--selector=owner=helm", "--output=name")
    assert node.kubectl(*release) == ""
    kinds = "all,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    left = ("get", kinds, *IN_NAMESPACE, "--selector=app.kubernetes.io/name=nvct", "--output=name")
    assert wait(lambda: node.kubectl(*left) == "", TIMEOUT_S), node.kubectl(*left)
    assert node.engine.snapshot() == before
