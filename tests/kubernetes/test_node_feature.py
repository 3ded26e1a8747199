# SPDX-License-Identifier: Apache-2.0
"""NodeFeature objects on a real API server: made, updated, owned, removed.

Node Feature Discovery's master would make labels of them; it is not here.
"""

from typing import Any

import pytest

from tests.engines.releases import of_release
from tests.kubernetes.api import PODS, ApiError, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.device_plugin import smi
from tests.kubernetes.pods import container
from tests.kubernetes.test_labels import (
    GPU,
    PRODUCT,
    RIGHT_S,
    SMALL,
    TIMEOUT_S,
    log,
    running,
    words_of,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures"
FEATURE = f"{FEATURES}/nvidia-features-for-{NODE}"
CRD_NAME = "nodefeatures.nfd.k8s-sigs.io"
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def objects_of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": properties, "required": list(required)}


def sets_of(elements: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of named sets of features."""
    return {
        "type": "object",
        "additionalProperties": objects_of({"elements": elements}, "elements"),
    }


INSTANCES = {"type": "array", "items": objects_of({"attributes": TEXTS}, "attributes")}
FLAGS = {"type": "object", "additionalProperties": {"type": "object"}}
KINDS = {"attributes": sets_of(TEXTS), "flags": sets_of(FLAGS), "instances": sets_of(INSTANCES)}
SPEC = {"labels": TEXTS, "features": {"type": "object", "properties": KINDS}}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CRD_NAME},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": objects_of(
                        {"spec": {"type": "object", "properties": SPEC}}, "spec"
                    )
                },
            }
        ],
    },
}
"""What Node Feature Discovery (2026-07) demands of an object."""
ONESHOT = ("--oneshot", "--pod-name=nowhere")
DAEMONSETS = "/apis/apps/v1/namespaces/default/daemonsets"


def define(cluster: Cluster) -> None:
    """Define the kind, if it is not there."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if cluster.api.find(f"{path}/{CRD_NAME}") is None:
        cluster.api.create(path, CRD)
    assert wait(lambda: is_served(cluster), TIMEOUT_S)


def is_served(cluster: Cluster) -> bool:
    try:
        return cluster.api.find(FEATURES) is not None
    except ApiError:  # 429, as long as its storage is made
        return False


def written(cluster: Cluster) -> dict[str, str]:
    """Return the labels of the node's object, none if there is no object."""
    feature = cluster.api.find(FEATURE)
    return dict(feature["spec"].get("labels") or {}) if feature else {}


@pytest.fixture(autouse=True)
def no_object(cluster: Cluster) -> None:
    """Begin without an object of an earlier test."""
    if cluster.api.find("/apis/nfd.k8s-sigs.io/v1alpha1") is not None:
        cluster.api.delete(FEATURE)


def test_without_node_feature_discovery_a_sentence_says_what_to_do(cluster: Cluster) -> None:
    cluster.kubectl("delete", "crd", CRD_NAME, "--ignore-not-found")
    done = cluster.box.call(*words_of(KUBECONFIG, *ONESHOT))
    assert done.returncode == 1, done
    assert "the cluster has no NodeFeature objects" in done.stderr, done
    assert "GFD_LABEL_NODE=true" in done.stderr, done


def test_a_nodefeature_object_has_the_labels_and_nothing_else(cluster: Cluster) -> None:
    define(cluster)
    old: dict[str, Any] = {
        "apiVersion": "nfd.k8s-sigs.io/v1alpha1",
        "kind": "NodeFeature",
        "metadata": {"name": f"nvidia-features-for-{NODE}"},
        "spec": {"labels": {f"{SMALL}.count": "7"}},
    }
    cluster.api.create(FEATURES, old)

    done = cluster.box.call(*words_of(KUBECONFIG, *ONESHOT))

    assert done.returncode == 0, done
    assert "there is no pod nowhere" in done.stderr, done
    feature = cluster.api.find(FEATURE)
    assert feature is not None
    assert feature["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
    first = feature["spec"]["labels"]
    assert first[f"{GPU}.product"] == PRODUCT
    assert f"{SMALL}.count" not in first
    version = feature["metadata"]["resourceVersion"]
    done = cluster.box.call(*words_of(KUBECONFIG, *ONESHOT, "--no-timestamp"))
    assert done.returncode == 0, done
    again = cluster.api.find(FEATURE)
    assert again is not None
    assert again["spec"]["labels"].keys() == first.keys() - {"nvidia.com/gfd.timestamp"}
    cluster.box.call(*words_of(KUBECONFIG, *ONESHOT, "--no-timestamp"))
    unchanged = cluster.api.find(FEATURE)
    assert unchanged is not None
    assert (
        unchanged["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"] > version
    )


def test_the_object_follows_changes_and_comes_back_and_its_labels_are_removed_on_request(
    cluster: Cluster,
) -> None:
    define(cluster)
    words = ("--mig-strategy=mixed", "--sleep-interval=1s", "--pod-name=nowhere")
    with running(cluster, KUBECONFIG, *words):
        assert wait(lambda: written(cluster).get(f"{GPU}.count") == "8", TIMEOUT_S), log(cluster)
        smi(cluster, "-i", "0", "-mig", "1")
        smi(cluster, "mig", "-i", "0", "-cgi", "1g.10gb", "-C")
        try:
            assert wait(lambda: written(cluster).get(f"{SMALL}.count") == "1", RIGHT_S)
            assert written(cluster)[f"{GPU}.product"] == PRODUCT
        finally:
            smi(cluster, "mig", "-i", "0", "-dci")
            smi(cluster, "mig", "-i", "0", "-dgi")
            smi(cluster, "-i", "0", "-mig", "0")
        assert wait(lambda: f"{SMALL}.count" not in written(cluster), RIGHT_S), log(cluster)
        cluster.api.delete(FEATURE)
        assert wait(lambda: written(cluster).get(f"{GPU}.count") == "8", RIGHT_S), log(cluster)
    assert written(cluster)[f"{GPU}.count"] == "8"  # they stay at the end

    done = cluster.box.call(*words_of(KUBECONFIG, "--remove-labels", "--pod-name=nowhere"))

    assert done.returncode == 0, done
    assert written(cluster) == {}


def test_the_object_goes_with_the_daemonset_and_not_with_one_of_its_pods(
    cluster: Cluster,
) -> None:
    define(cluster)
    match = {"name": "gfd"}
    sleeps = {"containers": [container("sleep 600", {})], "terminationGracePeriodSeconds": 0}
    template = {"metadata": {"labels": match}, "spec": sleeps}
    spec = {"selector": {"matchLabels": match}, "template": template}
    daemon_set = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": match, "spec": spec}
    cluster.api.create(DAEMONSETS, daemon_set)
    try:
        assert wait(lambda: names_of(cluster), TIMEOUT_S)
        (pod,) = names_of(cluster)
        done = cluster.box.call(*words_of(KUBECONFIG, "--oneshot", f"--pod-name={pod}"))
        assert done.returncode == 0, done
        feature = cluster.api.find(FEATURE)
        assert feature is not None
        owners = [each["kind"] for each in feature["metadata"]["ownerReferences"]]
        assert owners == ["DaemonSet", "Pod"]
        cluster.api.delete(f"{PODS}/{pod}")
        assert wait(lambda: names_of(cluster) not in ([], [pod]), TIMEOUT_S)
        assert written(cluster)[f"{GPU}.count"] == "8"
    finally:
        cluster.api.delete(f"{DAEMONSETS}/gfd")
    assert wait(lambda: cluster.api.find(FEATURE) is None, TIMEOUT_S)


def names_of(cluster: Cluster) -> list[str]:
    """Return the pods of the DaemonSet."""
    found = cluster.api.find(f"{PODS}?labelSelector=name%3Dgfd")
    return [pod["metadata"]["name"] for pod in found["items"]] if found else []
