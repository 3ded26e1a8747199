# SPDX-License-Identifier: Apache-2.0
"""What three well-known guides tell a reader to type works on a real cluster; docs/guides.md has the list.

A is "Kubernetes on NVIDIA GPUs" (2018), D a Korean guide to the plugins 1.11 and 1.12 (2020), E the
README of NVIDIA's plugin 0.9.0. Their images are replaced by nvct's; the default runtime is nvidia, as all of them say.
"""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct_sim import node_changes
from tests.engines.box import DRIVER_ROOT, PROGRAMS
from tests.engines.checks import UUID
from tests.engines.daemons import Done
from tests.kubernetes import pods
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import (
    GPUS,
    LIST,
    TIMEOUT_S,
    allocatable,
    asks,
    ruled,
    simulated,
)
from tests.kubernetes.listed import kubelet
from tests.kubernetes.pods import Pod, run

pytestmark = [pytest.mark.slow, ON_ONE]
IMAGE = "nvct:device-plugin"
NAME = "nvidia-device-plugin-daemonset"
NAMESPACE = "kube-system"
OPTIONS_OF_0_9 = (
    "--mig-strategy=none", "--fail-on-init-error=true", "--pass-device-specs=false",
    "--device-list-strategy=envvar", "--device-id-strategy=uuid", "--nvidia-driver-root=/",
)  # fmt: skip
"""As the chart of 0.9.0 passes its values' defaults."""
ALL = {"NVIDIA_VISIBLE_DEVICES": "all"}
"""As CUDA's images have it."""
POLICY = """
[[nvct.policy.rules]]
name = "the kubelet gives GPUs to pods"
given-by-kubelet = "/var/lib/kubelet"
then = "allow"

[[nvct.policy.rules]]
name = "images do not ask for GPUs in pods"
kubernetes = true
by = ["image-env"]
then = "ignore"
"""
WATCHED = "XID errors are watched from now on"
SETTLED_S = 4.0
"""Longer than the period in which XID errors are asked for."""


def manifest(
    args: tuple[str, ...] = (), version: str = "apps/v1", **spec: object
) -> dict[str, Any]:
    """Return the guides' DaemonSet; its args, API version and pod spec differ between them."""
    labels = {"name": "nvidia-device-plugin-ds"}
    container: dict[str, Any] = {
        "image": IMAGE, "name": "nvidia-device-plugin-ctr",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "device-plugin", "mountPath": "/var/lib/kubelet/device-plugins"}
        ],
    }  # fmt: skip
    if args:
        container["args"] = list(args)
    annotations = {"scheduler.alpha.kubernetes.io/critical-pod": ""}
    tolerations = [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
    ]
    path = {"path": "/var/lib/kubelet/device-plugins"}
    pod = {
        "tolerations": tolerations,
        "containers": [container],
        "volumes": [{"name": "device-plugin", "hostPath": path}],
        **spec,
    }
    return {
        "apiVersion": version,
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }


@contextlib.contextmanager
def created(node: Cluster, document: dict[str, Any], *, runs: bool = True) -> Iterator[None]:
    """Type `kubectl create -f FILE`; wait for the GPUs if it runs; delete it in the end."""
    file = node.box.work / "guide.yml"
    file.write_text(yaml.safe_dump(document))
    try:
        node.kubectl("create", "-f", str(file))
        assert not runs or wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), logs(node)
        yield
    finally:
        node.kubectl("delete", "--timeout=120s", "-f", str(file))
    assert wait(lambda: allocatable(node) == 0, TIMEOUT_S)


def test_e_create_the_daemonset_and_a_pod_of_two_containers(node: Cluster) -> None:
    args = ("--fail-on-init-error=false",)
    with created(node, manifest(args, priorityClassName="system-node-critical")):
        # `sleep`: both at the same time
        two = asks(2, f"{LIST}; sleep 2").container
        other = pods.container(f"{LIST}; sleep 2", {}, "digits-container", **two)
        pod = asks(2, f"{LIST}; sleep 2", runtime_class="").manifest("gpu-pod")
        pod["spec"]["containers"].append(other)
        node.api.create(PODS, pod)
        try:
            assert wait(lambda: _phase(node, "gpu-pod") == "Succeeded", TIMEOUT_S)
            names = [container["name"] for container in pod["spec"]["containers"]]
            seen = [UUID.findall(node.api.logs("gpu-pod", name)) for name in names]
        finally:
            node.api.delete(f"{PODS}/gpu-pod")
        assert [len(uuids) for uuids in seen] == [2, 2]
        assert len({*seen[0], *seen[1]}) == 4


def test_d_and_e_a_rule_of_the_policy_changes_that(node: Cluster) -> None:
    with created(node, manifest(("--device-id-strategy=index",))), ruled(node, POLICY):
        nothing = run(node.api, "asks-nothing", Pod(script="ls /dev | grep -c nvidia", env=ALL))
        one = run(node.api, "asks-1", asks(1, runtime_class=""))
    assert nothing.lines == ["0"], nothing
    assert len(UUID.findall(one.log)) == 1, one


@pytest.mark.parametrize(
    "options",
    [OPTIONS_OF_0_9, ("--device-list-strategy=volume-mounts",), ("--pass-device-specs",)],
    ids=["six", "volume-mounts", "cpu-manager"],
)
def test_e_options(options: tuple[str, ...], node: Cluster) -> None:
    """test_d_and_e_a_rule_of_the_policy_changes_that has the other strategy, of ids."""
    document = manifest(options)
    if options == ("--pass-device-specs",):
        (container,) = document["spec"]["template"]["spec"]["containers"]
        container["securityContext"] = {"privileged": True}
    with created(node, document):
        result = run(node.api, "asks-2", asks(2, f"{LIST}; ls /dev", runtime_class=""))
    assert len(UUID.findall(result.log)) == 2, result
    assert len(re.findall(r"^nvidia\d+$", result.log, re.MULTILINE)) == 2, result


def test_e_run_locally_without_docker(node: Cluster) -> None:
    words = (f"{PROGRAMS}/nvidia-device-plugin", f"--driver-root-ctr-path={DRIVER_ROOT}")
    with node.running("local.log", *words, "--pass-device-specs"):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S)
    assert wait(lambda: allocatable(node) == 0, TIMEOUT_S)


def test_d_and_e_the_old_api_version_is_refused_since_kubernetes_1_16(node: Cluster) -> None:
    document = manifest(version="extensions/v1beta1")
    document["spec"].pop("selector")
    refusal = refused(node, document)
    assert 'no matches for kind "DaemonSet" in version "extensions/v1beta1"' in refusal


def test_a_and_d_a_label_chooses_the_nodes(node: Cluster) -> None:
    labels = {"gpus": "true", "hardware-type": "NVIDIAGPU"}
    document = manifest(nodeSelector=labels)
    # The controller may keep what it remembers of an earlier DaemonSet with the same name.
    name = document["metadata"]["name"] = f"{NAME}-chosen"
    with created(node, document, runs=False):
        assert _desired(node, name) == 0
        try:
            node.kubectl(
                "label", "nodes", NODE, *(f"{key}={value}" for key, value in labels.items())
            )
            assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), _state(node)
            pod = asks(1, runtime_class="", spec={"nodeSelector": labels})
            assert len(UUID.findall(run(node.api, "chosen", pod).log)) == 1
        finally:
            node.label(*(f"{key}-" for key in labels))


def test_the_plugin_as_it_stands_in_all_guides(node: Cluster) -> None:
    with created(node, manifest()):
        log = node.kubectl("logs", f"--namespace={NAMESPACE}", f"daemonset/{NAME}")
        path = "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"
        assert f"Starting to serve '{GPU}' on {path}" in log
        assert f"Registered device plugin for '{GPU}' with Kubelet" in log

        described = node.kubectl("describe", "node", NODE)
        assert len(re.findall(rf"^  {GPU}:\s+{GPUS}$", described, re.MULTILINE)) == 2, described
        path = r"-o=jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
        assert node.kubectl("get", "nodes", path) == str(GPUS)

        nothing = run(node.api, "asks-nothing", Pod(script=LIST, env=ALL))
        assert len(UUID.findall(nothing.log)) == GPUS, nothing

        node.api.create(PODS, asks(1, "sleep 600", runtime_class="").manifest("gpu-pod"))
        try:
            assert wait(lambda: _phase(node, "gpu-pod") == "Running", TIMEOUT_S)
            assert "NVIDIA-SMI" in node.kubectl("exec", "gpu-pod", "--", "nvidia-smi")
            assert len(UUID.findall(node.kubectl("exec", "gpu-pod", "--", *LIST.split()))) == 1
        finally:
            node.api.delete(f"{PODS}/gpu-pod")


@pytest.mark.parametrize("where", ["plugin", "workload"])
def test_d_xid_errors_are_ignored_if_the_plugin_and_not_a_pod_has_the_variable(
    where: str, node: Cluster
) -> None:
    env = {"DP_DISABLE_HEALTHCHECKS": "xids"}
    document = manifest()
    if where == "plugin":
        container = document["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
    with created(node, document):
        pod = asks(1, "sleep 600", runtime_class="", env=env).manifest("workload")
        node.api.create(PODS, pod)
        try:
            assert wait(lambda: _phase(node, "workload") == "Running", TIMEOUT_S)
            assert where == "plugin" or wait(lambda: WATCHED in logs(node), TIMEOUT_S)
            node_changes.add_xid(simulated(node), 0, 79, {})
            if where == "plugin":
                time.sleep(SETTLED_S)
                assert kubelet(node) == GPUS, logs(node)
            else:
                assert wait(lambda: kubelet(node) == GPUS - 1, TIMEOUT_S), logs(node)
        finally:
            node.api.delete(f"{PODS}/workload")


def test_a_requests_of_nvidias_kubernetes_1_9_are_refused(node: Cluster) -> None:
    pod = Pod(script=LIST).manifest("by-memory")
    pod["spec"]["extendedResources"] = [{"name": "gpus", "resources": {"limits": {GPU: 1}}}]
    assert 'unknown field "spec.extendedResources"' in refused(node, pod)


def refused(node: Cluster, document: dict[str, Any]) -> str:
    """Type `kubectl create -f FILE`; return what it says as it fails."""
    file = node.box.work / "refused.json"
    file.write_text(json.dumps(document))
    done: Done = node.box.call("kubectl", f"--kubeconfig={KUBECONFIG}", "create", "-f", str(file))
    assert done.returncode != 0, done
    return done.stderr


def logs(node: Cluster) -> str:
    """Return what explains that the plugin's DaemonSet does not serve."""
    described = node.kubectl("describe", "pods", f"--namespace={NAMESPACE}")
    words = ("logs", f"--namespace={NAMESPACE}", f"daemonset/{NAME}")
    done = node.box.call("kubectl", f"--kubeconfig={KUBECONFIG}", *words)
    return described + done.stdout + done.stderr


def _phase(node: Cluster, name: str) -> str:
    found = node.api.find(f"{PODS}/{name}")
    return str(found["status"]["phase"]) if found else ""


def _state(node: Cluster) -> str:
    """Return what explains that a DaemonSet has no pods."""
    log = (node.box.work / "kube-controller-manager.log").read_text(errors="replace")[-3000:]
    return node.kubectl("describe", "daemonsets,pods", f"--namespace={NAMESPACE}") + log


def _desired(node: Cluster, name: str) -> int:
    """Return on how many nodes a DaemonSet is to run, after its controller has seen it."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{name}"
    assert wait(lambda: node.api.get(path)["status"].get("observedGeneration"), TIMEOUT_S)
    return int(node.api.get(path)["status"]["desiredNumberScheduled"])
