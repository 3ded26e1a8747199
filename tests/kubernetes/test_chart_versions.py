# SPDX-License-Identifier: Apache-2.0
"""What the chart makes of the version of Kubernetes: no pod that waits for ever, or gets no GPU."""

import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kubernetes.rendering import CHART, helm, notes, objects_of

pytestmark = pytest.mark.slow
CLASS = "gpu.nvidia.com"


def template(version: str, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    return helm("template", "nvct", str(CHART), f"--kube-version={version}", values=values)


OLD: Mapping[str, Any] = {"cdi": {"enabled": False}}
EVICTS: Mapping[str, Any] = {**OLD, "migManager": {"evictPods": True}}
NEEDED = "{}=true needs Kubernetes {} or later; this is v{}"


def heals(level: str) -> dict[str, Any]:
    return {**OLD, "health": {"remediation": level}}


@pytest.mark.parametrize(
    ("version", "values", "sentence"),
    [
        # A kubelet that ignores CDI names.
        *((version, {}, NEEDED.format("cdi.enabled", "1.29", version))
          for version in ("1.25.0", "1.28.9-eks-036c24b")),
        ("1.28.9", {}, "Set cdi.enabled=false."),
        ("1.29.0-eks-036c24b", {}, ""),
        ("1.28.9", OLD, ""),
        ("1.28.9", {"deviceListStrategy": ["cdi-annotations"]}, ""),
        ("1.28.9", {"devicePlugin": {"env": [{"name": "DEVICE_LIST_STRATEGY", "value": "envvar"}]}},
         ""),
        ("1.28.9", {"devicePlugin": {"enabled": False}}, ""),
        # Without admission policies, evictions and healing would have no limit.
        *((version, EVICTS, NEEDED.format("migManager.evictPods", "1.30", version))
          for version in ("1.25.0", "1.29.15")),
        ("1.29.15", {**OLD, "migManager": {"evictPods": True, "enabled": False}}, ""),
        ("1.30.0", EVICTS, ""),
        *(("1.29.15", heals(level),
           f"health.remediation={level} needs Kubernetes 1.30 or later; this is v1.29.15")
          for level in ("quarantine", "evict", "reset", "reboot-request")),
        ("1.30.0", heals("quarantine"), ""),
        ("1.30.0", heals("reboot-request"), ""),
    ],
)  # fmt: skip
def test_what_the_version_cannot_do_is_refused(
    version: str, values: Mapping[str, Any], sentence: str
) -> None:
    done = template(version, values)
    assert sentence in done.stderr
    assert (done.returncode != 0) is bool(sentence), done.stderr


def objects_of_test(version: str, dra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of `helm test`, the pod last."""
    done = template(version, {"dra": {"enabled": True, **dra}})
    assert done.returncode == 0, done.stderr
    objects = objects_of(done.stdout)
    found = [each for each in objects if each["metadata"]["name"] == "nvct-test"]
    return sorted(found, key=lambda each: each["kind"] == "Pod")


@pytest.mark.parametrize(
    ("version", "dra"),
    [
        ("1.34.0", {}),
        ("1.33.0", {}),
        ("1.36.0", {"deviceClasses": {"extendedResource": False}}),
        ("1.34.0", {"unlabeledNodes": "dra"}),
    ],
)
def test_the_test_asks_by_a_claim_where_nothing_offers_nvidia_com_gpu(
    version: str, dra: Mapping[str, Any]
) -> None:
    claim, pod = objects_of_test(version, dra)
    (request,) = claim["spec"]["spec"]["devices"]["requests"]
    exact = request["exactly"] if version != "1.33.0" else request
    assert exact["deviceClassName"] == CLASS
    (of_pod,) = pod["spec"]["resourceClaims"]
    assert of_pod["resourceClaimTemplateName"] == claim["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {"claims": [{"name": of_pod["name"]}]}


@pytest.mark.parametrize(
    ("version", "dra"), [("1.36.0", {}), ("1.34.0", {"unlabeledNodes": "classic"})]
)
def test_the_test_asks_for_nvidia_com_gpu_where_that_is_offered(
    version: str, dra: Mapping[str, Any]
) -> None:
    (pod,) = objects_of_test(version, dra)
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_the_notes_say_how_pods_ask_with_dra() -> None:
    dra = {"enabled": True, "deviceClasses": {"extendedResource": False}}
    said = notes({"dra": dra, "devicePlugin": {"enabled": False}})
    assert f"by a ResourceClaim of the DeviceClass {CLASS}" in said
    assert "Nothing offers GPUs" not in said
    assert "limits: {nvidia.com/gpu: 1}" not in said
