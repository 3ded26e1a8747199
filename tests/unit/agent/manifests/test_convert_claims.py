# SPDX-License-Identifier: Apache-2.0
"""Pods with limits of GPUs become pods with claims, and conditions on labels those of devices."""

import copy
import re
from typing import Any

import pytest

from nvct.agent.manifests import convert_claims
from nvct.errors import DocumentError

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(resource: str = "nvidia.com/gpu", count: object = 1, **spec: Any) -> Any:
    limits = {"limits": {resource: count, "cpu": "2"}, "requests": {resource: count}}
    return {
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": {"containers": [{"name": "main", "resources": limits}], **spec},
    }


def expressions(*terms: list[tuple[str, str, list[str]]]) -> Any:
    nodes = [
        {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in term]}
        for term in terms
    ]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": nodes}}}}


def converted(document: Any) -> tuple[Any, Any, list[str]]:
    before = copy.deepcopy(document)
    (template, made), changes = convert_claims.convert(document)
    assert document == before
    return template["spec"]["spec"]["devices"]["requests"][0]["exactly"], made["spec"], changes


def cel(request: Any) -> str:
    (selector,) = request["selectors"]
    return str(selector["cel"]["expression"])


def test_a_limit_becomes_a_claim() -> None:
    (template, made), changes = convert_claims.convert(pod(count=2))

    assert template["metadata"] == {"name": "train-main-gpu", "namespace": "ml"}
    spec = made["spec"]
    assert spec["resourceClaims"] == [
        {"name": "main-gpu", "resourceClaimTemplateName": "train-main-gpu"}
    ]
    (container,) = spec["containers"]
    assert container["resources"] == {"limits": {"cpu": "2"}, "claims": [{"name": "main-gpu"}]}
    assert "in place of the limit nvidia.com/gpu: 2" in changes[0]
    request, _, _ = converted(pod(count=2))
    assert request == {"deviceClassName": "gpu.nvidia.com", "count": 2}
    request, _, _ = converted(pod("nvidia.com/mig-1g.10gb.me"))
    assert request["deviceClassName"] == "mig.nvidia.com"
    assert cel(request).endswith("profile.replace('+', '.') == '1g.10gb.me'")


def named(**metadata: str) -> Any:
    document = {"kind": "List", "metadata": {}, "items": [{**pod(), "metadata": metadata}]}
    return convert_claims.convert(document)[0][0]["metadata"]


def test_a_template_has_the_namespace_of_its_pod_and_a_name_of_63_characters() -> None:
    found = named(generateName="run-", namespace="team")
    assert found == {"name": "run-main-gpu", "namespace": "team"}
    first, second = (named(name="n" * 70 + end)["name"] for end in "ab")
    assert first != second
    assert len(first) == len(second) <= 63


def test_conditions_on_labels_become_conditions_on_the_gpu() -> None:
    conditions = [
        ("nvidia.com/gpu.memory", "Gt", ["8000"]),
        ("nvidia.com/gpu.ecc", "In", ["true"]),
        ("nvidia.com/gpu.compute.major", "In", ["8", "9"]),
        ("nvidia.com/gpu.family", "NotIn", ["volta"]),
    ]

    request, spec, _ = converted(pod(**expressions(conditions)))

    assert cel(request) == (
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('8000Mi')) > 0 && "
        "device.attributes['gpu.nvidia.com'].?ecc.orValue(false) == true && "
        "(device.attributes['gpu.nvidia.com'].cudaComputeCapability.major() == 8 || "
        "device.attributes['gpu.nvidia.com'].cudaComputeCapability.major() == 9) && "
        "!(device.attributes['gpu.nvidia.com'].architecture.lowerAscii().replace(' ', '-') in "
        "['volta'])"
    )
    assert "affinity" not in spec


def test_alternatives_and_selectors() -> None:
    memory, major = "nvidia.com/gpu.memory", "nvidia.com/gpu.compute.major"
    either = expressions([(memory, "Gt", ["1"])], [(major, "Lt", ["9"])])
    selector: Any = {"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4", "zone": "a"}}

    request, spec, _ = converted(pod(**either, **selector))

    text = cel(request)
    assert "productName.replace(' ', '-') in ['Tesla-T4'] && ((" in text
    assert ") || (" in text
    assert spec["nodeSelector"] == {"zone": "a"}
    _, spec, _ = converted(pod(nodeSelector={"nvidia.com/gpu.family": "hopper"}))
    assert "nodeSelector" not in spec


def test_a_condition_that_is_not_of_a_gpu_stays() -> None:
    mixed = expressions([("nvidia.com/gpu.memory", "Gt", ["1"]), ("zone", "In", ["a"])])

    request, spec, changes = converted(pod(**mixed))

    assert "selectors" not in request
    assert spec["affinity"] == mixed["affinity"]
    assert any("the nodeAffinity stays" in change for change in changes)


def test_what_asks_for_no_gpu_is_as_it_was() -> None:
    for document in (None, {"kind": "Service"}, pod("example.com/nic"), pod(count=0)):
        assert convert_claims.convert(document) == ([document], [])


def test_an_init_container_shares_the_claim_of_a_container_but_a_sidecar_does_not() -> None:
    def container(name: str, **more: str) -> Any:
        return {"name": name, "resources": {"limits": {"nvidia.com/gpu": 1}}, **more}

    inits = [container("sidecar", restartPolicy="Always"), container("setup")]

    *templates, made = convert_claims.convert(pod(initContainers=inits))[0]

    names = [one["metadata"]["name"] for one in templates]
    assert names == ["train-main-gpu", "train-sidecar-gpu"]
    claims = [one["resources"]["claims"] for one in made["spec"]["initContainers"]]
    assert claims == [[{"name": "sidecar-gpu"}], [{"name": "main-gpu"}]]


TRAINER = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1}}}
LARGE = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": "8"}}}


def of_other(kind: str, group: str, **spec: Any) -> Any:
    metadata = {"name": "job", "namespace": "ml"}
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "spec": spec}


def template(*containers: Any) -> Any:
    return {"template": {"spec": {"containers": copy.deepcopy(list(containers))}}}


@pytest.mark.parametrize(
    "document",
    [
        of_other("PyTorchJob", "kubeflow.org",
                 pytorchReplicaSpecs={"Master": template(TRAINER), "Worker": template(LARGE)}),
        of_other("MPIJob", "kubeflow.org",
                 mpiReplicaSpecs={"Launcher": template(TRAINER), "Worker": template(LARGE)}),
        of_other("RayCluster", "ray.io", headGroupSpec=template(TRAINER),
                 workerGroupSpecs=[template(LARGE)]),
        of_other("Job", "batch.volcano.sh", tasks=[template(TRAINER), template(LARGE)]),
        of_other("LLMInferenceService", "serving.kserve.io",
                 template={"containers": [TRAINER]}, worker={"containers": [LARGE]}),
    ],
    ids=lambda document: document["kind"],
)  # fmt: skip
def test_each_pod_in_an_object_of_other_software_has_its_own_template(document: Any) -> None:
    *templates, made = convert_claims.convert(document)[0]

    assert [one["metadata"] for one in templates] == [
        {"name": "job-trainer-gpu", "namespace": "ml"},
        {"name": "job-trainer-gpu-2", "namespace": "ml"},
    ]
    counts = [one["spec"]["spec"]["devices"]["requests"][0]["exactly"] for one in templates]
    assert [exactly.get("count", 1) for exactly in counts] == [1, 8]
    assert "nvidia.com/gpu" not in str(made)
    _, changes = convert_claims.convert(document)
    group = document["apiVersion"].partition("/")[0]
    assert f"this kind is of {group}: check that it knows resourceClaims of pods" in changes[-1]


def test_equal_requests_of_one_object_have_one_template() -> None:
    document = of_other("Job", "batch.volcano.sh", tasks=[template(TRAINER), template(TRAINER)])

    *templates, made = convert_claims.convert(document)[0]

    assert len(templates) == 1
    claims = [task["template"]["spec"]["resourceClaims"] for task in made["spec"]["tasks"]]
    assert claims[0] == claims[1] != []


def test_a_template_name_of_another_document_is_taken_only_for_the_same_content() -> None:
    other, same = pod(count=4), pod()
    documents = [other, same, {**pod(count=4), "metadata": {"name": "train"}}, pod(count=4)]
    known = convert_claims.Templates()

    made = [convert_claims.convert(document, known)[0] for document in documents]

    names = [[one["metadata"]["name"] for one in result[:-1]] for result in made]
    # The third is of another namespace; the last one needs what the first one has made.
    assert names == [["train-main-gpu"], ["train-main-gpu-2"], ["train-main-gpu"], []]


def test_templates_of_the_manifest_itself_are_not_overwritten() -> None:
    (mine, converted_once), _ = convert_claims.convert(pod(count=2))
    documents = [{"kind": "List", "items": [mine, converted_once]}, pod(count=3)]
    known = convert_claims.Templates(documents)

    assert convert_claims.convert(documents[0], known) == ([documents[0]], [])
    (other, _), _ = convert_claims.convert(documents[1], known)
    assert other["metadata"]["name"] == "train-main-gpu-2"


def test_a_claim_that_the_pod_has_already_stays() -> None:
    own = [{"name": "main-gpu", "resourceClaimName": "mine"}]
    _, spec, _ = converted(pod(resourceClaims=own))
    assert [claim["name"] for claim in spec["resourceClaims"]] == ["main-gpu", "main-gpu-2"]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "main-gpu-2"}]


def with_resources(**resources: Any) -> Any:
    document = pod()
    document["spec"]["containers"][0]["resources"] = resources
    return document


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (with_resources(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 30}),
         "container main keeps its limits: no claim replaces nvidia.com/gpumem-percentage"),
        (with_resources(limits={"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}),
         "Pod train: container main keeps its limits: no claim replaces nvidia.com/gpumem"),
        (with_resources(limits={"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}),
         "Pod train: container main keeps its limits: no claim replaces nvidia.com/gpucores"),
        (with_resources(limits={"nvidia.com/gpu.shared": 1}),
         "Pod train: container main keeps its limits: no claim replaces nvidia.com/gpu.shared"),
        (with_resources(requests={"nvidia.com/gpu": 1}),
         "container main keeps the request nvidia.com/gpu: Kubernetes requires a limit with it"),
        (of_other("InferenceService", "serving.kserve.io",
                  predictor={"model": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}),
         "the limit nvidia.com/gpu in spec.predictor.model.resources stays: no container"),
    ],
    ids=["part", "parts-of-two", "threads", "shared", "request", "of-kserve"],
)  # fmt: skip
def test_a_limit_that_stays_has_a_reason(document: Any, sentence: str) -> None:
    (made,), changes = convert_claims.convert(document)
    assert made == document
    assert len(changes) == 1
    assert sentence in changes[0]


def terms(*found: Any) -> Any:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(found)}}}}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        *(
            (with_resources(limits={"nvidia.com/gpu": count}), f"gpu: {count!r} is not a number")
            for count in ("many", "$GPUS", None, 0.5)
        ),
        (with_resources(limits={"nvidia.com/gpumem": "{{x}}"}), "gpumem: '{{x}}' is not a number"),
        (with_resources(limits=["nvidia.com/gpu"]), "limits of container main is not an object"),
        (pod(containers=[{"name": "main", "resources": "many"}]), "of container main is not an object"),
        (pod(nodeSelector=["a"]), "nodeSelector is not an object"),
        (pod(affinity="a"), "nodeAffinity is not an object"),
        (pod(**terms(None)), "nodeAffinity is not a list of objects"),
        (pod(**terms({"matchExpressions": ["a"]})), "nodeAffinity is not a list of objects"),
        (pod(**terms({"matchExpressions": [{"key": "nvidia.com/gpu.memory", "values": 8}]})),
         "values is not a list"),
        (pod(resourceClaims="a"), "resourceClaims is not a list of objects"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused(document: Any, sentence: str) -> None:
    with pytest.raises(DocumentError, match=f"Pod train: .*{re.escape(sentence)}"):
        convert_claims.convert(document)


def test_the_name_of_a_profile_brings_no_condition() -> None:
    """A resource with quotes in its name would let any MIG device fit."""
    given = pod("nvidia.com/mig-1g.10gb' || '' == '")

    (made,), (change,) = convert_claims.convert(given)

    assert made == given
    assert "keeps its limits" in change


def test_the_memory_of_a_gpu_is_no_condition_for_its_mig_devices() -> None:
    memory = expressions([("nvidia.com/gpu.memory", "Gt", ["40000"])])
    selector = {"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.family": "hopper"}
    given = pod("nvidia.com/mig-1g.10gb", **memory, nodeSelector=selector)

    request, spec, changes = converted(given)

    assert "memory" not in cel(request)
    assert spec["affinity"] == memory["affinity"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.memory": "81559"}
    assert any("nodeSelector nvidia.com/gpu.memory stays" in change for change in changes)


@pytest.mark.parametrize("product", ["NVIDIA-A100-SHARED", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"])
def test_a_product_of_shared_or_mig_devices_is_not_the_model_of_a_gpu(product: str) -> None:
    request, spec, changes = converted(pod(nodeSelector={"nvidia.com/gpu.product": product}))
    assert "selectors" not in request
    assert spec["nodeSelector"] == {"nvidia.com/gpu.product": product}
    assert any("nodeSelector nvidia.com/gpu.product stays" in change for change in changes)


@pytest.mark.parametrize(
    ("limits", "capacity"),
    [
        ({"gpu": 1, "gpumem": 3000}, {"memory": "3000Mi"}),
        ({"gpumem": "3000", "gpucores": 30}, {"memory": "3000Mi", "cores": "30"}),
    ],
)
def test_a_part_of_a_gpu_becomes_capacities(
    limits: dict[str, object], capacity: dict[str, str]
) -> None:
    given = {f"nvidia.com/{name}": value for name, value in limits.items()}
    document = with_resources(limits=given, requests={**given, "cpu": "1"})

    request, spec, changes = converted(document)

    assert request == {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": capacity}}
    (container,) = spec["containers"]
    claim = {"name": "main-gpu"}
    assert container["resources"] == {"requests": {"cpu": "1"}, "claims": [claim]}
    assert "in place of the limits nvidia.com/gpu: 1, nvidia.com/gpumem: 3000" in changes[0]
    assert "dra.shares of the chart" in changes[1]
