# SPDX-License-Identifier: Apache-2.0
"""Pods of NVIDIA's Kubernetes 1.9 become pods of today, or a sentence says why they can't."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvct.agent.manifests.convert import PER_NODE, REQUIRED, convert
from nvct.errors import DocumentError
from tests.support.commands import invoke

NAME = "nvidia-gpu"
NEEDED = "requiredDuringSchedulingIgnoredDuringExecution"
GPU = {"nvidia.com/gpu": 1}


def condition(key: str, operator: str, *values: object) -> dict[str, Any]:
    return {"key": f"nvidia.com/{key}", "operator": operator, "values": list(values)}


def pod(*conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the guide's pod, with conditions on its GPU."""
    resource = {
        "name": NAME,
        "resources": {"limits": GPU},
        "affinity": {"required": list(conditions)},
    }
    container = {"name": "cuda", "image": "nvidia/cuda", "extendedResourceRequests": [NAME]}
    spec = {"containers": [container], "extendedResources": [resource], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpu-pod"}, "spec": spec}


def terms(document: Any) -> list[Any]:
    """Return the conditions on nodes, each term as the texts of its expressions."""
    node = document["spec"]["affinity"]["nodeAffinity"][NEEDED]
    return [
        sorted(
            " ".join((each["key"], each["operator"], *each.get("values", ()))).removeprefix(
                "nvidia.com/"
            )
            for each in term["matchExpressions"]
        )
        for term in node["nodeSelectorTerms"]
    ]


def test_the_pod_of_the_guide() -> None:
    given = pod(condition("gpu-memory", "Gt", "8000"))
    before = copy.deepcopy(given)

    converted, changes = convert(given)

    assert given == before
    assert isinstance(converted, dict)
    (container,) = converted["spec"]["containers"]
    assert container == {"name": "cuda", "image": "nvidia/cuda", "resources": {"limits": GPU}}
    assert "extendedResources" not in converted["spec"]
    assert terms(converted) == [["gpu.memory Gt 8000"]]
    place = "in place of extendedResourceRequests 'nvidia-gpu'"
    assert changes == [
        f"Pod gpu-pod: container cuda has the limit nvidia.com/gpu: 1, {place}",
        "Pod gpu-pod: nvidia.com/gpu-memory Gt 8000 becomes nvidia.com/gpu.memory Gt 8000",
        f"Pod gpu-pod: {PER_NODE}",
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (condition("gpu-ecc", "In", *[True]), [["gpu.ecc In true"]]),
        (condition("gpu-ecc", "In", "no"), [["gpu.ecc In false"]]),
        (condition("gpu-memory", "Lt", 9000), [["gpu.memory Lt 9000"]]),
        (
            condition("gpu-compute-capability", "Gt", "7.0"),
            [["gpu.compute.major Gt 7"], ["gpu.compute.major In 7", "gpu.compute.minor Gt 0"]],
        ),
        (
            condition("compute-capability", "Lt", 7),
            [["gpu.compute.major Lt 7"], ["gpu.compute.major In 7", "gpu.compute.minor Lt 0"]],
        ),
        (
            condition("gpu-compute-capability", "In", "7.0", "8.6"),
            [
                ["gpu.compute.major In 7", "gpu.compute.minor In 0"],
                ["gpu.compute.major In 8", "gpu.compute.minor In 6"],
            ],
        ),
        ({"key": "nvidia.com/gpu-memory", "operator": "Exists"}, [["gpu.memory Exists"]]),
    ],
)
def test_conditions(given: dict[str, Any], expected: list[list[str]]) -> None:
    assert terms(convert(pod(given))[0]) == expected


def test_all_conditions_must_hold_beside_those_of_the_pod() -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
             for zone in "ab"]  # fmt: skip
    own = {"nodeAffinity": {NEEDED: {"nodeSelectorTerms": zones}}}
    given = (condition("gpu-memory", "Gt", "8000"), condition("gpu-compute-capability", "Gt", "7"))
    assert terms(convert(pod(*given, affinity=own))[0]) == [
        ["gpu.compute.major Gt 7", "gpu.memory Gt 8000", "zone In a"],
        ["gpu.compute.major In 7", "gpu.compute.minor Gt 0", "gpu.memory Gt 8000", "zone In a"],
        ["gpu.compute.major Gt 7", "gpu.memory Gt 8000", "zone In b"],
        ["gpu.compute.major In 7", "gpu.compute.minor Gt 0", "gpu.memory Gt 8000", "zone In b"],
    ]


def test_pods_in_other_objects_and_lists() -> None:
    template = {"spec": pod(condition("gpu-memory", "Gt", 1))["spec"]}
    job = {"kind": "Job", "metadata": {"name": "train"}, "spec": {"template": template}}
    nightly = {"spec": {"jobTemplate": {"spec": {"template": template}}}}
    _, changes = convert({"kind": "List", "items": [job, {**nightly, "kind": "CronJob"}]})
    assert {change.partition(":")[0] for change in changes} == {"Job train", "CronJob"}


@pytest.mark.parametrize("document", [None, "text", [], {}, {"spec": None}, {"spec": {}}])
def test_what_is_no_pod_stays_as_it_is(document: object) -> None:
    assert convert(document) == (document, [])


def test_a_pod_of_today_stays_as_it_is() -> None:
    container = {"name": "a", "resources": {"limits": GPU}}
    today = {"kind": "Pod", "spec": {"containers": [container], "affinity": {}}}
    assert convert(today) == (today, [])


def test_a_resource_that_no_container_requests_is_removed() -> None:
    given = pod(condition("gpu-memory", "Gt", "8000"))
    del given["spec"]["containers"][0]["extendedResourceRequests"]
    converted, changes = convert(given)
    assert isinstance(converted, dict)
    assert converted["spec"].keys() == {"containers"}
    assert changes == [
        "Pod gpu-pod: extendedResources 'nvidia-gpu' is removed: no container requests it"
    ]


def _shared() -> dict[str, Any]:
    given = pod()
    given["spec"]["containers"] *= 2
    return given


def _with(**fields: object) -> dict[str, Any]:
    """Return the guide's pod, its resource with other fields."""
    given = pod()
    given["spec"]["extendedResources"][0].update(fields)
    return given


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (pod(condition("gpu-fans", "Gt", 1)), "no label replaces nvidia.com/gpu-fans"),
        (pod(condition("gpu-memory", "Near", 1)), "nvidia.com/gpu-memory Near 1 is not a condition"),
        (pod(condition("gpu-memory", "Gt", "8Gi")), "needs one whole number"),
        (pod(condition("gpu-memory", "Gt", 1, 2)), "needs one whole number"),
        (pod(condition("compute-capability", "NotIn", "7.0")), "cannot be expressed by labels"),
        (pod(condition("compute-capability", "Gt", "new")), "cannot be expressed by labels"),
        (_shared(), "containers cuda and cuda share 'nvidia-gpu'"),
        (_with(affinity={"preferred": []}), "only `required` of its affinity has a counterpart"),
        (_with(resources=7), "extendedResources 'nvidia-gpu' has no limits"),
        (_with(resources={"limits": {"nvidia.com/gpu": "x"}}), "is not a number"),
        (_with(name="other"), "names 'nvidia-gpu', which extendedResources lacks"),
        (_with(name=None), "an entry of extendedResources has no name"),
        (pod(extendedResources={"a": 1}), "Pod gpu-pod: extendedResources is not a list of objects"),
        (pod(containers=[{}, "a"]), "Pod gpu-pod: containers is not a list of objects"),
        (pod(condition("gpu-memory", "Gt", 1), affinity="near"), "affinity of the pod is not an object"),
        (pod(condition("gpu-memory", "Gt", 1), affinity={"nodeAffinity": [1]}),
         "nodeAffinity is not an object"),
        (pod(containers=[{"extendedResourceRequests": 7}]), "extendedResourceRequests is not a list"),
        (pod(containers=[{"extendedResourceRequests": [{}]}]), "names {}, which"),
        (_with(resources={"limits": {"nvidia.com/gpu": float("inf")}}), "is not a number"),
        (pod(containers=[{"extendedResourceRequests": [NAME], "resources": 7}]),
         "Pod gpu-pod: resources of a container is not an object"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_with_a_sentence(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DocumentError) as error:
        convert(given)
    assert sentence in error.value.message


def test_an_affinity_without_a_content_is_none() -> None:
    made, _ = convert(pod(condition("gpu-memory", "Gt", 1), affinity={"nodeAffinity": None}))

    assert isinstance(made, dict)
    (term,) = made["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert len(term["matchExpressions"]) == 1


def test_a_manifest_that_refers_to_itself_is_refused() -> None:
    given: list[Any] = []
    given.append(given)
    with pytest.raises(DocumentError, match="refers to itself"):
        convert(given)


def test_the_command_prints_manifests_and_explains_on_stderr(tmp_path: Path) -> None:
    file = tmp_path / "pod.yml"
    given = [pod(condition("gpu-memory", "Gt", "8000")), {"kind": "Service"}]
    file.write_text("# a comment\n" + yaml.safe_dump_all(given) + "---\n")

    done = invoke("nvct", ["convert", str(file)])

    assert done.exit_code == 0, done.output
    assert [each["kind"] for each in yaml.safe_load_all(done.stdout)] == ["Pod", "Service"]
    assert "values:\n            - '8000'\n" in done.stdout
    assert "gpu-memory Gt 8000 becomes nvidia.com/gpu.memory Gt 8000" in done.stderr


def test_names_of_others_have_no_effect_on_a_terminal(tmp_path: Path) -> None:
    document = pod(condition("gpu-memory", "Gt", "8000"))
    document["metadata"]["name"] = "\x1b]0;evil\x07\x1b[2J"
    container = document["spec"]["containers"][0]
    container["name"] = "\x1b[31mred\r\n"
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(document))

    done = invoke("nvct", ["convert", str(path)])

    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\\x1b[31mred" in done.stderr
