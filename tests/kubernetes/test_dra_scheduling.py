# SPDX-License-Identifier: Apache-2.0
"""Claims by each attribute and capacity: the real scheduler finds the GPU, or the pod stays pending.

The GPUs are those of Nodes without a kubelet, whose slices a client keeps. The last test has the
node's own kubelet and driver.
"""

import re
from typing import Any

import pytest

from nvct.agent.dra.devices import MIB, Device, Value, Version
from tests.engines.checks import UUID
from tests.engines.releases import of_release
from tests.kubernetes.api import PODS, wait
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.dra import (
    ATTRIBUTES,
    CLAIMS,
    TIMEOUT_S,
    Driver,
    account,
    allocated,
    asks_for_claims,
    claim,
    devices,
    log_of,
    make_classes,
    make_node,
    make_slices,
    pod,
    scheduled_to,
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("cluster", [of_release("trixie")], indirect=True),
]
MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('{}')) {} 0"
COMPUTE = f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('{{}}')) {{}} 0"
PRODUCT = f"{ATTRIBUTES}.productName == '{{}}'"
SAME_NVLINK = "gpu.nvidia.com/nvlinkDomain"
T4, V100, A100, MIG = "t4", "v100", "a100", "mig"


def gpu(node: str, number: int, model: tuple[str, int, str, bool], domain: str = "") -> Device:
    product, memory, compute, ecc = model
    uuid = f"GPU-{node}-{number}"
    attributes: dict[str, Value] = {
        "type": "gpu", "uuid": uuid, "productName": product, "ecc": ecc,
        "cudaComputeCapability": Version(compute), **({"nvlinkDomain": domain} if domain else {}),
    }  # fmt: skip
    return Device(
        name=f"gpu-{number}", uuid=uuid, gpu=uuid, attributes=attributes,
        capacity={"memory": memory * MIB},
    )  # fmt: skip


def mig(number: int, profile: str, memory: int) -> Device:
    attributes: dict[str, Value] = {
        "type": "mig", "uuid": f"MIG-{number}", "profile": profile, "ecc": True,
        "productName": "NVIDIA A30", "cudaComputeCapability": Version("8.0.0"),
    }  # fmt: skip
    return Device(
        name=f"gpu-0-mig-{number}", uuid=f"MIG-{number}", gpu="GPU-mig", attributes=attributes,
        capacity={"memory": memory * MIB},
    )  # fmt: skip


TESLA_T4 = ("Tesla T4", 15360, "7.5.0", False)
TESLA_V100 = ("Tesla V100-SXM2-32GB", 32768, "7.0.0", True)
LARGE = ("NVIDIA A100-SXM4-80GB", 81920, "8.0.0", True)
NODES = {
    T4: [gpu(T4, n, TESLA_T4) for n in range(2)],
    V100: [gpu(V100, n, TESLA_V100, f"domain-{n // 2}") for n in range(4)],
    A100: [gpu(A100, n, LARGE, "switch") for n in range(3)],
    MIG: [mig(0, "1g.6gb", 5952), mig(1, "2g.12gb", 12032)],
}
CASES: dict[str, tuple[str, dict[str, Any], set[str] | None]] = {
    "memory": (MEMORY.format("40Gi", ">="), {}, {A100}),
    "memory, less": (MEMORY.format("16Gi", "<"), {}, {T4}),
    "memory, none": (MEMORY.format("100Gi", ">="), {}, None),
    "compute capability": (COMPUTE.format("8.0.0", ">="), {}, {A100}),
    "compute capability, between": (
        f"{COMPUTE.format('7.0.0', '>')} && {COMPUTE.format('8.0.0', '<')}", {}, {T4},
    ),
    "compute capability, none": (COMPUTE.format("9.0.0", ">="), {}, None),
    "ecc": (f"{ATTRIBUTES}.ecc", {}, {V100, A100}),
    "no ecc": (f"!{ATTRIBUTES}.ecc", {}, {T4}),
    "the guide's pod": (
        f"{MEMORY.format('8000Mi', '>')} && {ATTRIBUTES}.ecc && {COMPUTE.format('7.0.0', '>=')}",
        {}, {V100, A100},
    ),
    "product": (PRODUCT.format("Tesla T4"), {}, {T4}),
    "product, none": (PRODUCT.format("Tesla K80"), {}, None),
    "count": (PRODUCT.format("Tesla V100-SXM2-32GB"), {"count": 4}, {V100}),
    "count, too many": (PRODUCT.format("NVIDIA A100-SXM4-80GB"), {"count": 4}, None),
    "all of a node": (PRODUCT.format("Tesla T4"), {"allocationMode": "All"}, {T4}),
    "same NVLink": (
        PRODUCT.format("Tesla V100-SXM2-32GB"), {"count": 2, "same": SAME_NVLINK}, {V100},
    ),
    "same NVLink, three": ("true", {"count": 3, "same": SAME_NVLINK}, {A100}),
    "same NVLink, none": (
        PRODUCT.format("Tesla V100-SXM2-32GB"), {"count": 3, "same": SAME_NVLINK}, None,
    ),
    "same NVLink, no NVLink": (PRODUCT.format("Tesla T4"), {"count": 2, "same": SAME_NVLINK}, None),
    "MIG profile": (f"{ATTRIBUTES}.profile == '2g.12gb'", {"device_class": "mig"}, {MIG}),
    "MIG profile, none": (f"{ATTRIBUTES}.profile == '3g.20gb'", {"device_class": "mig"}, None),
    "a missing attribute": (f"{ATTRIBUTES}.?nothing.orValue('') == 'x'", {}, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def far(node: Cluster) -> Cluster:
    """Return the cluster with the DeviceClasses, and the Nodes without a kubelet."""
    make_classes(node, extended="")
    for name, offered in NODES.items():
        make_slices(node, make_node(node, name), *offered)
    return node


@pytest.mark.parametrize("name", CASES)
def test_a_claim_is_scheduled_where_it_fits_or_pends(far: Cluster, name: str) -> None:
    expression, more, pools = CASES[name]
    one = re.sub("[^a-z]+", "-", name.lower())  # a name of its own, as events stay
    _make(far, one, expression, **more)
    try:
        with pod(far, one, asks_for_claims(one)):
            if pools is None:
                assert wait(lambda: _pends(far, one), TIMEOUT_S), far.api.find(f"{PODS}/{one}")
                assert allocated(far, one) == []
            else:
                assert wait(lambda: scheduled_to(far, one), TIMEOUT_S), far.api.events(one)
                given = allocated(far, one)
                count = 2 if more.get("allocationMode") else more.get("count", 1)
                assert len(set(given)) == count
                assert {device.partition("/")[0] for device in given} <= pools
                if "same" in more:
                    assert len({_domain(device) for device in given}) == 1
    finally:
        _delete(far, one)


def test_what_is_taken_is_free_again_when_its_pod_has_ended(far: Cluster) -> None:
    names = ("first", "second", "third")
    for name in names:
        _make(far, name, PRODUCT.format("Tesla T4"))
    with pod(far, "third", asks_for_claims("third")):
        with (
            pod(far, "first", asks_for_claims("first")),
            pod(far, "second", asks_for_claims("second")),
        ):
            assert wait(lambda: sum(bool(allocated(far, name)) for name in names) == 2, TIMEOUT_S)
            (late,) = (name for name in names if not allocated(far, name))
            assert wait(lambda: _pends(far, late), TIMEOUT_S)
        for name in ("first", "second"):
            _delete(far, name)
        assert wait(lambda: allocated(far, "third"), TIMEOUT_S), far.api.events("third")
    _delete(far, "third")


def test_pods_that_name_the_same_claim_share_its_gpu(far: Cluster) -> None:
    driver = Driver(far, account(far))
    driver.start()
    try:
        claim(far, "shared", PRODUCT.format(_product(far)))
        slow = asks_for_claims("shared", script="nvidia-smi -L; sleep 600")
        with pod(far, "reads", slow), pod(far, "writes", slow):
            names = ("reads", "writes")
            assert wait(
                lambda: all(UUID.findall(log_of(far, name)) for name in names), TIMEOUT_S
            ), driver.log()
            seen = {tuple(UUID.findall(log_of(far, name))) for name in names}
            (device,) = allocated(far, "shared")
            assert seen == {(devices(far)[device.partition("/")[2]],)}
            assert driver.journal() == ["shared"]
        assert wait(lambda: driver.journal() == [], TIMEOUT_S), driver.log()
    finally:
        driver.remove()


def _product(far: Cluster) -> str:
    found = far.api.find(
        "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode"
    )
    assert found is not None
    return str(found["items"][0]["spec"]["devices"][0]["attributes"]["productName"]["string"])


def _make(
    far: Cluster, name: str, expression: str, *, device_class: str = "gpu", same: str = "", **more: Any
) -> None:  # fmt: skip
    """Create a claim for devices of Nodes without a kubelet."""
    exactly = {
        "deviceClassName": f"{device_class}.nvidia.com", "selectors": [{"cel": {"expression": expression}}],
        **more,
    }  # fmt: skip
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    if same:
        spec["devices"]["constraints"] = [{"requests": ["gpu"], "matchAttribute": same}]
    far.api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})


def _delete(far: Cluster, name: str) -> None:
    far.api.delete(f"{CLAIMS}/{name}")
    assert wait(lambda: far.api.find(f"{CLAIMS}/{name}") is None, TIMEOUT_S)


def _pends(far: Cluster, name: str) -> bool:
    return any("cannot allocate all claims" in text for text in far.api.events(name))


def _domain(device: str) -> object:
    pool, _, name = device.partition("/")
    (found,) = (one for one in NODES[pool] if one.name == name)
    return found.attributes["nvlinkDomain"]
