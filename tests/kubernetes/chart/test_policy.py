# SPDX-License-Identifier: Apache-2.0
"""What somebody can do who has the agent's token: what nvct's tasks do, and nothing else.

Requests are dry runs on a real API server. That tasks can do their work, the other modules show:
`installed` looks for refusals in the audit log.
"""

from collections.abc import Iterator

import pytest

from nvct.agent.condition.condition import TYPE
from nvct.agent.heal.brakes import FAILING, STOP, STOPPED
from nvct.agent.heal.node import REQUEST
from nvct.agent.heal.node import TAINT as FAILED
from nvct.agent.kubernetes.node_pods import PROTECTED
from nvct.agent.mig_manager.node_labels import CONFIG, DEPLOY, REASON, STATE
from tests.kubernetes.api import PODS, Object, wait
from tests.kubernetes.chart.lab import answer, installed
from tests.kubernetes.cluster import NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.pods import Pod

pytestmark = [pytest.mark.slow, ON_ONE]
OTHER = "other-node"
TAINT = "example.com/a"
WORDS = (
    "--set=nodeSelector.kubernetes\\.io/hostname=none",  # no agent runs
    f"--set=devicePlugin.startupTaint={TAINT}",
    "--set=migManager.enabled=true",
    "--set=migManager.evictPods=true",
    "--set=gfd.env[0].name=GFD_EXTRA_LABELS",
    "--set=gfd.env[0].value=ecc\\,pci",
    "--set=gfd.allowedLabels[0]=example.com/pool",
    "--set=health.remediation=reboot-request",
    "--set=networkPolicy.egress.enabled=true",
    "--set=networkPolicy.egress.apiServer[0]=10.96.0.1/32",
)
COUNT = "nvidia.com/gpu.count"
ONLY_OWN = "may change only the Node that it runs on"
ONLY_PODS = "may evict only pods of the Node that it runs on"
ON_OTHER, ON_NODE, NOWHERE, KEPT = "on-other", "on-node", "nowhere", "kept"
"""Pods by where they run; the third one waits for a node, and the last one has a label."""
JANITOR = "janitor.dgxc.nvidia.com"
CRD: Object = {
    "metadata": {"name": f"rebootnodes.{JANITOR}"},
    "spec": {
        "group": JANITOR, "scope": "Cluster",
        "names": {"kind": "RebootNode", "plural": "rebootnodes"},
        "versions": [
            {
                "name": "v1alpha1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": True,
                }},
            },
        ],
    },
}  # fmt: skip
"""Stands for NVSentinel's."""
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ONLY_LEASES = "may take and free a Lease only for the Node that it runs on"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/nvct/leases"
NO_LABEL = "may change only the labels of its tasks; this request changes "
NO_STATUS = "may change only one condition in the status of a Node"
NO_SPEC = "may not change the spec of a Node except one taint"
TAINTS = [{"key": key, "effect": "NoSchedule"} for key in (TAINT, "example.com/b")]
KEEP_TAINTS = f"may remove only the taint {TAINT}"
OWNERS = [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]
NO_METADATA = "may change only labels and annotations"


@pytest.fixture(scope="module")
def guarded(node: Cluster) -> Iterator[Cluster]:
    """Yield a cluster with the chart's policies in force, which takes a moment, and two Nodes."""
    spec = {"taints": TAINTS}
    labels = {CONFIG: "all-disabled"}
    metadata = {"name": OTHER, "labels": labels, "annotations": {"example.com/note": "x"}}
    node.api.create("/api/v1/nodes", {"kind": "Node", "metadata": metadata, "spec": spec})
    places: dict[str, Object] = {ON_OTHER: {"nodeName": OTHER}, ON_NODE: {"nodeName": NODE},
              NOWHERE: {"nodeSelector": {"kubernetes.io/hostname": "none"}},
              KEPT: {"nodeName": OTHER}}  # fmt: skip
    for name, place in places.items():
        manifest = Pod(script="sleep 600", spec=place).manifest(name)
        manifest["metadata"]["labels"] = {PROTECTED: "never" if name == KEPT else "later"}
        node.api.create(PODS, manifest)
    try:
        with installed(node, *WORDS):
            assert wait(lambda: ONLY_OWN in change(node, {}, at=NODE))
            assert wait(lambda: ONLY_PODS in evict(node, ON_NODE))
            yield node
    finally:
        for name in places:
            node.api.delete(f"{PODS}/{name}")
        node.api.delete(f"/api/v1/nodes/{OTHER}")


def change(node: Cluster, patch: Object, part: str = "", at: str = OTHER) -> str:
    """Change the Node without a kubelet, as the agent that runs there; return the refusal."""
    return answer(node, "PATCH", f"/api/v1/nodes/{OTHER}{part}", patch, at)


def labels(*keys: str, value: str | None = "x") -> Object:
    return {"metadata": {"labels": dict.fromkeys(keys, value)}}


def condition(kind: str) -> Object:
    return {"status": {"conditions": [{"type": kind, "status": "False"}]}}


def tainted(*taints: Object) -> Object:
    return {"spec": {"taints": [*taints]}}


@pytest.mark.parametrize("of", ["", "-events", "-evictions", "-leases", "-reboots"])
def test_the_api_server_warns_of_no_expression(of: str, guarded: Cluster) -> None:
    path = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/nvct-agent{of}"
    assert wait(lambda: "observedGeneration" in checked(guarded, path))
    assert not checked(guarded, path).get("typeChecking", {}).get("expressionWarnings")


def checked(node: Cluster, path: str) -> Object:
    """Return the status of a policy."""
    found = node.api.get(path)
    status: Object = found.get("status", {})
    return status


@pytest.mark.parametrize(
    ("patch", "part"),
    [
        ({}, ""),
        (labels(COUNT, "nvidia.com/cuda.driver.major", "nvidia.com/mig-1g.10gb.count"), ""),
        (labels("nvidia.com/mig.strategy", "feature.node.kubernetes.io/pci-10de.present"), ""),
        (labels("example.com/pool", STATE, *DEPLOY), ""),
        ({"metadata": {"annotations": {REASON: "busy"}}}, ""),
        (tainted(TAINTS[1]), ""),
        (tainted(*TAINTS, {"key": FAILED, "effect": "NoSchedule"}), ""),
        (labels(REQUEST), ""),
        (condition(TYPE), "/status"),
    ],
)
def test_what_tasks_do_is_allowed(patch: Object, part: str, guarded: Cluster) -> None:
    assert change(guarded, patch, part) == ""


@pytest.mark.parametrize(
    "key",
    [
        "node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/secret",
        "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/other",
        "feature.node.kubernetes.io/cpu-model.id", "pool", "cloud.google.com/gke-nodepool",
        "nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.workload.config", "nvidia.com/gpu",
        "nvidia.com/device-plugin.config", "nvidia.com/vgpu.config", CONFIG, "nvct.dev/resources",
        "example.com/pool.x", "xnvidia.com/gpu.count",
    ],
)  # fmt: skip
def test_no_other_label_can_be_changed(key: str, guarded: Cluster) -> None:
    assert f"{NO_LABEL}{key}; see the value gfd.allowedLabels" in change(guarded, labels(key))
    assert f"{NO_LABEL}{key};" in change(guarded, labels(key, value=""))
    hidden = {**labels(key), **condition(TYPE)}
    assert NO_LABEL in change(guarded, hidden, "/status")


def test_no_other_label_can_be_removed(guarded: Cluster) -> None:
    assert f"{NO_LABEL}{CONFIG};" in change(guarded, labels(CONFIG, value=None))


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        *(
            ({"status": part}, NO_STATUS)
            for part in (
                {"capacity": {"cpu": "1"}}, {"allocatable": {"nvidia.com/gpu": "8"}},
                {"phase": "Terminated"},
                {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]},
                {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
                {"nodeInfo": {"kubeletVersion": "v1.0.0"}},
                {"images": [{"names": ["a"], "sizeBytes": 1}]},
                {"volumesInUse": ["kubernetes.io/csi/a"]},
                {"volumesAttached": [{"name": "a", "devicePath": "/dev/a"}]},
                {"runtimeHandlers": [{"name": "a"}]},
                {"features": {"supplementalGroupsPolicy": True}},
            )
        ),
        *(
            (condition(kind), "change only the condition")
            for kind in ("Ready", "MemoryPressure", "example.com/Own", "nvct.dev/Other")
        ),
        ({"spec": {"unschedulable": True}}, NO_SPEC),
        ({"spec": {"providerID": "other"}}, NO_SPEC),
        ({"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}, NO_SPEC),
        (tainted(), KEEP_TAINTS),
        (tainted({"key": TAINT, "effect": "NoExecute"}), KEEP_TAINTS),
        (tainted(*TAINTS, {"key": FAILED, "effect": "NoExecute"}),
         f"may give taint {FAILED} only the effect NoSchedule"),
        (tainted(*TAINTS, {"key": "example.com/c", "effect": "NoSchedule"}), KEEP_TAINTS),
        *(
            ({"metadata": {"annotations": note}}, "may not change annotations except")
            for note in ({"example.com/note": None}, {"projectcalico.org/IPv4Address": "10.0.0.1"})
        ),
        ({"metadata": {"finalizers": ["example.com/stay"]}}, NO_METADATA),
        ({"metadata": {"ownerReferences": OWNERS}}, NO_METADATA),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_else_of_a_node_can_be_changed(
    patch: Object, sentence: str, guarded: Cluster
) -> None:
    assert sentence in change(guarded, patch, "/status" if "status" in patch else "")


@pytest.mark.parametrize("at", [NODE, "", "other"])
def test_no_other_node_can_be_changed(at: str, guarded: Cluster) -> None:
    assert ONLY_OWN in change(guarded, labels(COUNT), at=at)
    assert ONLY_OWN in change(guarded, condition(TYPE), "/status", at=at)


def evict(node: Cluster, name: str, at: str = OTHER, namespace: str = "default") -> str:
    """Evict a pod as the agent that runs on a Node; return the refusal."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    return answer(node, "POST", path, body, at)


@pytest.mark.parametrize(
    ("name", "at", "sentence"),
    [
        (ON_OTHER, OTHER, ""),
        (ON_NODE, NODE, ""),
        (ON_NODE, OTHER, ONLY_PODS),
        (ON_OTHER, NODE, ONLY_PODS),
        (ON_OTHER, "", ONLY_PODS),
        (NOWHERE, OTHER, ONLY_PODS),
        (NOWHERE, "", ONLY_PODS),
        (KEPT, OTHER, "may not evict a pod with the label nvct.dev/evict=never"),
        ("absent", OTHER, "not found"),
    ],
)
def test_no_other_pod_can_be_evicted(name: str, at: str, sentence: str, guarded: Cluster) -> None:
    """Not by a token either."""
    is_refused(evict(guarded, name, at), sentence)
    elsewhere = evict(guarded, "absent", namespace="kube-public")
    assert "no params found" in elsewhere


def is_refused(refusal: str, sentence: str) -> None:
    """Assert that a request is refused with a sentence, or allowed for ""."""
    assert sentence in refusal
    assert bool(refusal) == bool(sentence)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"nodeName": OTHER, "force": False}, ""),
        ({"nodeName": NODE, "force": False}, "only of the Node that it runs on"),
        ({"nodeName": OTHER, "force": True}, "not by force"),
        ({"force": False}, "only of the Node that it runs on"),
    ],
)
def test_a_reboot_is_asked_for_its_own_node(
    spec: Object, sentence: str, guarded: Cluster, reboots: str
) -> None:
    is_refused(answer(guarded, "POST", reboots, reboot(spec), OTHER), sentence)


def reboot(spec: Object) -> Object:
    version = f"{JANITOR}/v1alpha1"
    return {"apiVersion": version, "kind": "RebootNode", "metadata": {"name": "x"}, "spec": spec}


@pytest.fixture(scope="module")
def reboots(guarded: Cluster) -> Iterator[str]:
    """Make the kind RebootNode, and yield the path of its collection, once it is guarded."""
    path = f"/apis/{JANITOR}/v1alpha1/rebootnodes"
    guarded.api.create(CRDS, {"kind": "CustomResourceDefinition", **CRD})
    body = reboot({"nodeName": NODE, "force": False})
    try:
        assert wait(lambda: "only of the Node" in answer(guarded, "POST", path, body, OTHER))
        yield path
    finally:
        guarded.api.delete(f"{CRDS}/{CRD['metadata']['name']}")


def event(**changes: Object) -> Object:
    reference = {"kind": "Node", "name": OTHER, "uid": OTHER}
    base: Object = {
        "metadata": {"name": "x.1", "namespace": "default"}, "involvedObject": reference,
        "reason": "GPUsReady", "message": "x", "type": "Normal",
        "source": {"component": "nvct", "host": OTHER},
    }  # fmt: skip
    return {**base, **changes}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"source": {"component": "kubelet", "host": OTHER}}, "only Events that name it"),
        ({"source": {"component": "nvct", "host": NODE}}, "only Events that name it"),
        ({"source": {}}, "only Events that name it"),
        ({"involvedObject": {"kind": "Node", "name": NODE}}, "only Events of the Node"),
        (
            {"involvedObject": {"kind": "Pod", "name": OTHER, "namespace": "default"}},
            "only Events of the Node",
        ),
    ],
)
def test_events_are_of_its_own_node(
    changes: dict[str, Object], sentence: str, guarded: Cluster
) -> None:
    path = "/api/v1/namespaces/default/events"
    is_refused(answer(guarded, "POST", path, event(**changes), at=OTHER), sentence)


@pytest.fixture
def leases(guarded: Cluster) -> Iterator[Cluster]:
    """Yield the cluster while Node NODE heals, and healing is stopped."""
    patches: tuple[tuple[str, Object], ...] = (
        ("nvct-heal-0", {"spec": {"holderIdentity": NODE, "leaseDurationSeconds": 60}}),
        (STOP, {"metadata": {"annotations": {STOPPED: "5 nodes failed"}}}),
    )
    for name, patch in patches:
        guarded.api.patch(f"{LEASES}/{name}", patch)
    yield guarded
    guarded.api.patch(f"{LEASES}/nvct-heal-0", {"spec": None})
    guarded.api.patch(f"{LEASES}/{STOP}", {"metadata": {"annotations": None}})


RENEWED: Object = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}


@pytest.mark.parametrize(
    ("patch", "at", "sentence"),
    [
        ({"spec": {"holderIdentity": OTHER}}, OTHER, ""),  # of a node that has died
        ({"spec": {"holderIdentity": None}}, NODE, ""),
        (RENEWED, NODE, ""),
        (RENEWED, OTHER, ONLY_LEASES),
        ({"spec": {"holderIdentity": None}}, OTHER, ONLY_LEASES),
        ({"spec": {"holderIdentity": NODE}}, "", ""),  # nothing changes
        ({"spec": {"holderIdentity": "x"}}, NODE, ONLY_LEASES),
        ({"spec": {"holderIdentity": OTHER}}, "", ONLY_LEASES),
    ],
)
def test_a_lease_is_taken_and_freed_for_its_own_node(
    patch: Object, at: str, sentence: str, leases: Cluster
) -> None:
    is_refused(answer(leases, "PATCH", f"{LEASES}/nvct-heal-0", patch, at), sentence)


def test_only_a_person_ends_the_stop_of_healing(leases: Cluster) -> None:
    def change_stop(**notes: str | None) -> str:
        patch: Object = {"metadata": {"annotations": notes}}
        return answer(leases, "PATCH", f"{LEASES}/{STOP}", patch, OTHER)

    assert change_stop(**{FAILING: "{}"}) == ""
    for text in (None, "", "all is well"):
        assert "a person must end it" in change_stop(**{STOPPED: text})


@pytest.mark.parametrize(
    "metadata",
    [
        {"finalizers": ["example.com/stay"]},
        {"labels": {"app.kubernetes.io/managed-by": "x"}},
        {"ownerReferences": OWNERS},
    ],
)
def test_nothing_else_of_a_lease_can_be_changed(metadata: Object, leases: Cluster) -> None:
    refusal = answer(leases, "PATCH", f"{LEASES}/{STOP}", {"metadata": metadata}, OTHER)
    assert "may change only annotations in the metadata of a Lease" in refusal


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", LEASES), ("POST", LEASES), ("DELETE", f"{LEASES}/{STOP}"),
        ("PATCH", f"{LEASES}/nvct-heal-1"), ("PUT", f"{LEASES}/nvct-heal-0"),
        ("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{OTHER}"),
        ("DELETE", f"/api/v1/nodes/{OTHER}"), ("POST", "/api/v1/nodes"), ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/pods"), ("GET", "/api/v1/namespaces/nvct/secrets"),
        ("GET", "/api/v1/namespaces/nvct/configmaps"), ("GET", f"/api/v1/nodes/{OTHER}/proxy/pods"),
        ("POST", "/api/v1/namespaces/nvct/pods"),
        ("POST", "/api/v1/namespaces/nvct/serviceaccounts/nvct/token"),
        ("PUT", f"/api/v1/nodes/{OTHER}"), ("DELETE", "/api/v1/namespaces/default/events/x"),
    ],
)  # fmt: skip
def test_it_has_no_other_right(method: str, path: str, guarded: Cluster) -> None:
    body = None if method in ("GET", "DELETE") else {"metadata": {"name": OTHER}}
    assert "cannot" in answer(guarded, method, path, body, at=OTHER)
