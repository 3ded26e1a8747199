# SPDX-License-Identifier: Apache-2.0
"""NodeFeature objects on a real API server: made, updated, owned, removed.

Node Feature Discovery's master would make labels of them; it is not here.
"""

from typing import Any

import pytest

from tests.kubernetes.api import ApiError, wait
from tests.kubernetes.cluster import KUBECONFIG, NODE, Cluster
from tests.kubernetes.conftest import ON_ONE
from tests.kubernetes.device_plugin import divided
from tests.kubernetes.tasks.test_labels import (
    GPU,
    PRODUCT,
    RIGHT_S,
    SMALL,
    TIMEOUT_S,
    log,
    running,
    words_of,
)

pytestmark = [pytest.mark.slow, ON_ONE]
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures"
FEATURE = f"{FEATURES}/nvidia-features-for-{NODE}"
CRD_NAME = "nodefeatures.nfd.k8s-sigs.io"
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def objects_of(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object."""
    needs = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needs}


def named(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object of which each field has a schema."""
    return {"type": "object", "additionalProperties": schema}


INSTANCES = {"type": "array", "items": objects_of({"attributes": TEXTS}, "attributes")}
ELEMENTS = {"attributes": TEXTS, "flags": named({"type": "object"}), "instances": INSTANCES}
KINDS = {
    kind: named(objects_of({"elements": each}, "elements")) for kind, each in ELEMENTS.items()
}
SPEC = objects_of({"labels": TEXTS, "features": objects_of(KINDS)})
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
                "name": "v1alpha1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": objects_of({"spec": SPEC}, "spec")},
            }
        ],
    },
}  # fmt: skip
"""What Node Feature Discovery (2026-07) demands of an object."""
ONESHOT = ("--oneshot", "--pod-name=nowhere")


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
    feature = cluster.api.get(FEATURE)
    assert feature["metadata"]["labels"] == {"nfd.node.kubernetes.io/node-name": NODE}
    first = feature["spec"]["labels"]
    assert first[f"{GPU}.product"] == PRODUCT
    assert f"{SMALL}.count" not in first
    version = feature["metadata"]["resourceVersion"]
    done = cluster.box.call(*words_of(KUBECONFIG, *ONESHOT, "--no-timestamp"))
    assert done.returncode == 0, done
    again = cluster.api.get(FEATURE)
    assert again["spec"]["labels"].keys() == first.keys() - {"nvidia.com/gfd.timestamp"}
    cluster.box.call(*words_of(KUBECONFIG, *ONESHOT, "--no-timestamp"))
    unchanged = cluster.api.get(FEATURE)
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
        with divided(cluster, "1g.10gb"):
            assert wait(lambda: written(cluster).get(f"{SMALL}.count") == "1", RIGHT_S)
            assert written(cluster)[f"{GPU}.product"] == PRODUCT
        assert wait(lambda: f"{SMALL}.count" not in written(cluster), RIGHT_S), log(cluster)
        cluster.api.delete(FEATURE)
        assert wait(lambda: written(cluster).get(f"{GPU}.count") == "8", RIGHT_S), log(cluster)
    assert written(cluster)[f"{GPU}.count"] == "8"  # they stay at the end

    done = cluster.box.call(*words_of(KUBECONFIG, "--remove-labels", "--pod-name=nowhere"))

    assert done.returncode == 0, done
    assert written(cluster) == {}
