# SPDX-License-Identifier: Apache-2.0
"""Tasks of the agent that the chart switches on: MIG devices by a label, healing, claims; what a real API server accepts."""

import json

import pytest
import yaml

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.mig_manager.node_labels import CONFIG, STATE
from nvct_sim import node_changes, tree
from tests.engines.checks import UUID
from tests.kubernetes import audit, programs
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CHART,
    FARM,
    GPUS,
    IMAGE_SAYS_ALL,
    IN_NAMESPACE,
    LIST,
    TIMEOUT_S,
    allocatable,
    answer,
    asks,
    condition_of,
    gpus_of,
    installed,
    log_of,
    nvidia_labels,
    state_of,
)
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import simulated
from tests.kubernetes.pods import Pod, run
from tests.kubernetes.test_chart_values import MATRIX

pytestmark = pytest.mark.slow
FOREIGN = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
"""Kinds that other software brings."""
HEALING = (
    "--set=health.remediation=reset", "--set=agent.env[0].name=HEALTH_PROBATION",
    "--set-string=agent.env[0].value=1",
)  # fmt: skip
RIGHTS_OF_HEALING = {
    ("get", "pods"), ("create", "pods/eviction"), ("get", "leases"), ("patch", "leases"),
}  # fmt: skip
"""Besides changes of the Node, which other tasks make by default."""


def _makes_mig_devices(node: Cluster) -> None:
    """By a label."""
    name = "nvidia.com/mig-7g.80gb"
    try:
        for config, resource in (("all-7g.80gb", name), ("all-disabled", GPU)):
            node.label(f"{CONFIG}={config}")
            assert wait(lambda: allocatable(node, resource) == GPUS, TIMEOUT_S), state_of(node)  # noqa: B023
            done = wait(lambda: nvidia_labels(node).get(STATE) == "success", TIMEOUT_S)
            assert done, state_of(node)
            if resource == name:
                pod = Pod(script=LIST, container={"resources": {"limits": {name: "1"}}})
                result = run(node.api, "on-mig", pod)
                assert result.log.count("UUID: MIG-") == 1, result
    finally:
        node.label(f"{CONFIG}-")


def _show_tree(node: Cluster) -> None:
    """Mount the simulated node into the worker's container: there, MIG changes write files."""
    tree = str(simulated(node).tree)
    volume = {"name": "tree", "hostPath": {"path": tree}}
    mount = {"name": "tree", "mountPath": tree}
    pod = "/spec/template/spec"
    patch = [
        {"op": "add", "path": f"{pod}/volumes/-", "value": volume},
        {"op": "add", "path": f"{pod}/containers/0/volumeMounts/-", "value": mount},
    ]
    name = ("daemonset", "nvct-worker", *IN_NAMESPACE)
    node.kubectl("patch", *name, "--type=json", f"--patch={json.dumps(patch)}")
    node.kubectl("rollout", "status", *name, "--timeout=90s")


@ON_ONE
def test_mig_devices_are_made_and_a_gpu_heals_by_rights_that_no_account_has_by_default(
    node: Cluster,
) -> None:
    start = node.audit_log.stat().st_size
    machine = simulated(node)
    usual = audit.granted(node.helm("template", "nvct", str(CHART), *IN_NAMESPACE))
    with installed(node, *HEALING, "--set=mig.strategy=mixed"):
        _show_tree(node)
        more = audit.granted(node.helm("get", "manifest", "nvct", *IN_NAMESPACE)) - usual
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        _makes_mig_devices(node)
        for name in ("fails", "stays"):
            node.api.create(PODS, asks("", f"{LIST}; sleep 600").manifest(name))
        assert wait(
            lambda: all(UUID.findall(log_of(node, n)) for n in ("fails", "stays")), TIMEOUT_S
        )
        (uuid,) = set(UUID.findall(log_of(node, "fails")))
        gpu = next(n for n in range(GPUS) if tree.gpu_uuid(machine.name, n) == uuid)
        node_changes.set_gpu(machine, gpu, ecc_uncorrected=1, recovery="reset")
        node_changes.apply(machine, "xid", [str(gpu), "48"])
        assert wait(lambda: node.api.find(f"{PODS}/fails") is None, TIMEOUT_S), state_of(node)
        assert allocatable(node) == GPUS - 1
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        events = "/api/v1/namespaces/default/events?fieldSelector=reason%3DGPUHealthy"
        assert wait(lambda: (node.api.find(events) or {})["items"], TIMEOUT_S), state_of(node)
        assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
        stays = node.api.get(f"{PODS}/stays")
        assert "deletionTimestamp" not in stays["metadata"]
        node.api.delete(f"{PODS}/stays")
    used = {each.right for each in audit.of_accounts(audit.requests(node.audit_log, start))}
    assert {(right.verb, right.resource) for right in more} == RIGHTS_OF_HEALING
    assert more <= used


@ON_ONE
def test_without_cdi_pods_get_what_they_request_and_others_nothing(node: Cluster) -> None:
    """They need no RuntimeClass: nvidia is the default runtime."""
    with installed(node, *FARM, "--set=cdi.enabled=false"):
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        two = Pod(script=LIST, container={"resources": {"limits": {GPU: 2}}})
        result = run(node.api, "by-variables", two)
        assert gpus_of(result) == 2, result
        result = run(
            node.api, "asks-for-nothing", Pod(script=f"{LIST} || ls /dev", env=IMAGE_SAYS_ALL)
        )
        assert gpus_of(result) == 0, result
        assert "nvidia" not in result.log.replace("nvidia-smi: not found", "")


@ON_ONE
def test_with_dra_a_plain_request_gets_a_gpu_by_a_claim(node: Cluster) -> None:
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    with installed(node, "--set=dra.enabled=true"):
        first = run(node.api, "first", asks(""))
        assert gpus_of(first) == 1, first
        assert allocatable(node) == 0
        assert wait(lambda: condition_of(node) == "True", TIMEOUT_S), state_of(node)
        found = node.api.get(slices)
        (written,) = found["items"]
        assert len(written["spec"]["devices"]) == GPUS
        assert written["metadata"]["managedFields"][0]["manager"] == "nvct-dra"
        name = written["metadata"]["name"]
        path = f"{slices}/{name}"
        assert "may change only the ResourceSlices" in answer(node, "DELETE", path, at="other")
        spec = {"spec": {**written["spec"], "pool": {**written["spec"]["pool"], "name": "other"}}}
        foreign = {**written, "metadata": {"name": "foreign"}, **spec}
        assert "may change only the ResourceSlices" in answer(node, "POST", slices, foreign)
        assert answer(node, "DELETE", path) == ""


@ON_ONE
@pytest.mark.parametrize("values", ["defaults", "openshift", "plugin-0.20", "dra", "monitoring"])
def test_the_api_server_accepts_what_the_chart_renders(values: str, node: Cluster) -> None:
    """A dry run on the server."""
    given = node.box.work / "values.yaml"
    given.write_text(json.dumps(MATRIX[values]))
    text = node.helm("template", "nvct", str(CHART), "--namespace=default", f"--values={given}",
                     "--no-hooks", f"--kube-version={programs.KUBERNETES.version()}")  # fmt: skip
    objects = [each for each in yaml.safe_load_all(text) if each and each["kind"] not in FOREIGN]
    rendered = node.box.work / "rendered.yaml"
    rendered.write_text(yaml.safe_dump_all(objects))
    done = node.kubectl(
        "create", "--dry-run=server", f"--filename={rendered}", "--validate=strict"
    )
    assert done.count("(server dry run)") == len(objects), done
