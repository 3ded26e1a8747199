# SPDX-License-Identifier: Apache-2.0
"""Pods with limits of GPUs become pods with claims, and conditions on labels those of devices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from nvct.agent import convert_claims
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
    return {
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": key, "operator": operator, "values": values}
                                for key, operator, values in term
                            ]
                        }
                        for term in terms
                    ]
                }
            }
        }
    }


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


def test_a_mig_resource_names_its_profile() -> None:
    request, _, _ = converted(pod("nvidia.com/mig-1g.10gb.me"))

    assert request["deviceClassName"] == "mig.nvidia.com"
    assert cel(request).endswith("profile.replace('+', '.') == '1g.10gb.me'")


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


def test_a_condition_that_is_not_of_a_gpu_stays() -> None:
    mixed = expressions([("nvidia.com/gpu.memory", "Gt", ["1"]), ("zone", "In", ["a"])])

    request, spec, changes = converted(pod(**mixed))

    assert "selectors" not in request
    assert spec["affinity"] == mixed["affinity"]
    assert any("the nodeAffinity stays" in change for change in changes)


def test_what_asks_for_no_gpu_is_as_it_was() -> None:
    for document in (None, {"kind": "Service"}, pod("example.com/nic"), pod(count=0)["metadata"]):
        assert convert_claims.convert(document) == ([document], [])


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(DocumentError, match="is no number"):
        convert_claims.convert(pod(count="many"))


def test_an_init_container_shares_the_claim_of_a_container_but_a_sidecar_does_not() -> None:
    def container(name: str, **more: str) -> Any:
        return {"name": name, "resources": {"limits": {"nvidia.com/gpu": 1}}, **more}

    inits = [container("sidecar", restartPolicy="Always"), container("setup")]

    *templates, made = convert_claims.convert(pod(initContainers=inits))[0]

    names = [one["metadata"]["name"] for one in templates]
    assert names == ["train-main-gpu", "train-sidecar-gpu"]
    claims = [one["resources"]["claims"] for one in made["spec"]["initContainers"]]
    assert claims == [[{"name": "sidecar-gpu"}], [{"name": "main-gpu"}]]
