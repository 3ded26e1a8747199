# SPDX-License-Identifier: Apache-2.0
"""Tasks of the agent that the chart switches on: MIG devices by a label, claims."""

import json
import re

import pytest

from nvct.agent.device_plugin.resources import GPU
from nvct.agent.mig_manager.node_labels import CONFIG, STATE
from nvct_sim import node_changes, tree
from tests.engines.checks import UUID
from tests.kubernetes import audit
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.chart.lab import (
    CHART,
    FARM,
    GPUS,
    IMAGE_SAYS_ALL,
    IN_NAMESPACE,
    LIST,
    ON_ONE,
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
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.device_plugin import simulated
from tests.kubernetes.pods import Pod, run

pytestmark = pytest.mark.slow
HEALING = (
    "--set=health.remediation=reset", "--set=agent.env[0].name=HEALTH_PROBATION",
    "--set-string=agent.env[0].value=1",
)  # fmt: skip
RIGHTS_OF_HEALING = {
    ("get", "pods"), ("create", "pods/eviction"), ("get", "leases"), ("patch", "leases"),
}  # fmt: skip
"""Besides changes of the Node, which other tasks make by default."""


@ON_ONE
def test_a_label_makes_mig_devices(node: Cluster) -> None:
    name = "nvidia.com/mig-7g.80gb"
    with installed(node, "--set=mig.strategy=mixed"):
        _show_tree(node)
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
        try:
            for config, resource in (("all-7g.80gb", name), ("all-disabled", GPU)):
                node.kubectl("label", "--overwrite", "node", NODE, f"{CONFIG}={config}")
                assert wait(lambda: allocatable(node, resource) == GPUS, TIMEOUT_S), state_of(node)  # noqa: B023
                done = wait(lambda: nvidia_labels(node).get(STATE) == "success", TIMEOUT_S)
                assert done, state_of(node)
                if resource == name:
                    asked = {"limits": {name: "1"}}
                    pod = Pod(script=LIST, container={"resources": asked})
                    result = run(node.api, "on-mig", pod)
                    assert len(re.findall(r"UUID: MIG-", result.log)) == 1, result
        finally:
            node.kubectl("label", "node", NODE, f"{CONFIG}-")


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
def test_a_gpu_heals_by_rights_that_no_account_has_by_default(node: Cluster) -> None:
    start = node.audit_log.stat().st_size
    machine = simulated(node)
    usual = audit.granted(node.helm("template", "nvct", str(CHART), *IN_NAMESPACE))
    with installed(node, *HEALING):
        _show_tree(node)
        more = audit.granted(node.helm("get", "manifest", "nvct", *IN_NAMESPACE)) - usual
        assert wait(lambda: allocatable(node) == GPUS, TIMEOUT_S), state_of(node)
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
        stays = node.api.find(f"{PODS}/stays")
        assert stays is not None
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
        found = node.api.find(slices)
        assert found is not None
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
